"""The actor: log-probs, and the policy update."""

from dataclasses import replace

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.config import TrainConfig
from fsdp_backend.model.loading import load_policy
from fsdp_backend.objective.kl import approx_kl
from fsdp_backend.objective.policy_loss import policy_loss
from fsdp_backend.training.learner import Learner


class Actor:
    """The policy, its optimizer, and the frozen reference where the objective needs one."""

    def __init__(self, config: TrainConfig, mesh: DeviceMesh) -> None:
        self.ppo, self.temperature = config.ppo, config.rollout_temperature
        self.model = load_policy(config.actor.hf_checkpoint, config.actor, mesh)
        self.learner = Learner(self.model, config.actor, mesh, config.num_rollout)
        self.reference = None
        if self.ppo.uses_reference:
            frozen = replace(config.actor, gradient_checkpointing=False)
            self.reference = load_policy(self.ppo.ref_load or config.actor.hf_checkpoint, frozen, mesh).requires_grad_(False)
            self.learner.frozen = (self.reference,)

    def old_log_probs(self, batch: RolloutBatch) -> Floats | None:
        """[R] log-probs under the policy as it is now; None where nobody needs them before the update: when it takes a single
        step, that step's own forward gives them."""
        if len(self.learner.plan(batch)) == 1 and self.ppo.kl_coef == 0:
            return None
        return self.log_probs(batch)

    def log_probs(self, batch: RolloutBatch) -> Floats:
        """[R] log-probs of the response tokens under the policy as it is now, 0 where the loss mask is."""
        return self.learner.compute_column(batch, self.model, lambda pack: self.model(pack, self.temperature)[0])

    def ref_log_probs(self, batch: RolloutBatch) -> Floats | None:
        """[R] the same under the reference model; None without one."""
        reference = self.reference
        if reference is None:
            return None
        return self.learner.compute_column(batch, reference, lambda pack: reference(pack, self.temperature)[0])

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """One pass over the batch, which needs `advantages`, `log_probs` unless the pass is one step, and `ref_log_probs` for a
        KL loss."""
        loss = self._sft_loss if self.ppo.loss_type == "sft_loss" else self._policy_loss
        rate = self.learner.advance_clock()
        report = self.learner.run_pass(batch, loss, self.ppo.calculate_per_token_loss)
        return {
            **report.metrics,
            "lr": rate,
            "grad_norm": report.grad_norm,
            "num_steps": report.num_steps,
            "skipped_steps": report.skipped_steps,
        }

    def _policy_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        ppo = self.ppo
        log_probs, entropy = self.model(pack, self.temperature, entropy_grad=ppo.entropy_coef != 0)
        old = log_probs.detach() if batch.log_probs is None else pack.column(batch.log_probs)
        high = ppo.eps_clip if ppo.eps_clip_high is None else ppo.eps_clip_high
        pg_loss, clipped = policy_loss(
            log_probs, old, pack.column(batch.column("advantages")), ppo.eps_clip, high, ppo.eps_clip_c
        )
        loss = pg_loss - ppo.entropy_coef * entropy
        metrics = {"pg_loss": pg_loss, "pg_clipfrac": clipped, "ppo_kl": old - log_probs, "entropy": entropy}
        if ppo.use_kl_loss:
            ratio = log_probs - old if ppo.use_unbiased_kl else None
            kl = approx_kl(log_probs, pack.column(batch.column("ref_log_probs")), ppo.kl_loss_type, ratio)
            loss = loss + ppo.kl_loss_coef * kl
            metrics["kl_loss"] = kl
        if batch.rollout_log_probs is not None:
            metrics["train_rollout_logprob_abs_diff"] = (old - pack.column(batch.rollout_log_probs)).abs()
        return loss, log_probs, {"loss": loss, **metrics}

    def _sft_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        log_probs, entropy = self.model(pack, temperature=1.0)
        return -log_probs, log_probs, {"sft_loss": -log_probs, "entropy": entropy}
