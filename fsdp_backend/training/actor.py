"""The actor: log-probs, and the policy update."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.batch.plan import pass_order
from fsdp_backend.config import TrainConfig
from fsdp_backend.model.loading import load_policy
from fsdp_backend.training.actor_loss import Correction, actor_loss
from fsdp_backend.training.learner import Learner, Loss, Share, WholeLoss

CustomLoss = Callable[[Tensor, Pack, RolloutBatch, Share], tuple[Tensor, dict[str, Tensor]]]
"""From the logits [T of the pack, vocabulary], not tempered, to the micro-batch's share of the step's loss and of metrics."""


class Actor:
    """The policy, its optimizer, and the frozen reference where the objective needs one."""

    def __init__(
        self,
        config: TrainConfig,
        mesh: DeviceMesh,
        correction: Correction | None = None,
        custom_loss: CustomLoss | None = None,
    ) -> None:
        """`correction` takes the place of the importance weight of use_tis; `custom_loss` is that of loss_type custom_loss.
        Raises ValueError where that is missing, or for a checkpoint that can't be trained."""
        if config.ppo.loss_type == "custom_loss" and custom_loss is None:
            raise ValueError("loss_type custom_loss needs the function itself, which slime train reads from its path")
        self.custom_loss = custom_loss
        self.ppo, self.temperature, self.seed = config.ppo, config.rollout_temperature, config.seed
        self.correction = correction
        self.model = load_policy(config.actor.hf_checkpoint, config.actor, mesh)
        # Rollouts that train the critic alone are not on the actor's clock, nor in its horizon.
        self.learner = Learner(self.model, config.actor, mesh, config.num_rollout - config.ppo.rollouts_without_actor)
        self.reference = None
        if self.ppo.uses_reference:
            frozen = replace(config.actor, gradient_checkpointing=False)
            self.reference = load_policy(self.ppo.ref_load or config.actor.hf_checkpoint, frozen, mesh).requires_grad_(False)
            self.learner.frozen = (self.reference,)

    def old_log_probs(self, batch: RolloutBatch, rollout_id: int) -> Floats | None:
        """[R] log-probs from before the update: under the policy as it is now, or those of the rollout (use_rollout_logprobs).

        None where nobody needs them: when the actor doesn't train on this rollout, or takes a single step, whose own forward
        gives them, and there is no function of the user's to read them. Raises ValueError if the batch lacks
        rollout_log_probs that the update needs.
        """
        ppo = self.ppo
        if ppo.uses_rollout_log_probs and batch.rollout_log_probs is None:
            raise ValueError("use_tis and use_rollout_logprobs need the rollout's log-probs, which this batch does not have")
        if ppo.use_rollout_logprobs:
            return batch.rollout_log_probs
        steps = len(self.learner.plan(batch)) * ppo.actor_update_steps if ppo.trains_actor(rollout_id) else 0
        read = steps > 0 and ppo.reads_log_probs
        return self.log_probs(batch) if steps > 1 or ppo.kl_coef != 0 or read else None

    def log_probs(self, batch: RolloutBatch) -> Floats:
        """[R] log-probs of the response tokens under the policy as it is now, 0 where the loss mask is."""
        return self.learner.compute_column(batch, self.model, lambda pack: self.model(pack, self.temperature)[0])

    def ref_log_probs(self, batch: RolloutBatch, rollout_id: int) -> Floats | None:
        """[R] the same under the reference model; None where nobody needs them."""
        reference = self.reference
        if reference is None or not self.ppo.needs_old_policy(rollout_id):
            return None
        return self.learner.compute_column(batch, reference, lambda pack: reference(pack, self.temperature)[0])

    def update(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """`actor_update_steps` passes over the batch, which needs `advantages`, `log_probs` unless there is but one step, and
        `ref_log_probs` for a KL loss. The first pass is in the batch's order; others in one seeded by (seed, rollout, pass).

        Returns: metrics, averaged over the passes.
        """
        losses: dict[str, Loss | WholeLoss] = {"sft_loss": self._sft_loss, "policy_loss": self._policy_loss}
        loss = losses.get(self.ppo.loss_type, WholeLoss(self._custom_loss))
        rate = self.learner.advance_clock()
        orders = [None, *(pass_order(self.seed, rollout_id, k) for k in range(1, self.ppo.actor_update_steps))]
        reports = [self.learner.run_pass(batch, loss, self.ppo.calculate_per_token_loss, order) for order in orders]
        return {
            **{name: float(np.mean([report.metrics[name] for report in reports])) for name in reports[0].metrics},
            "lr": rate,
            "grad_norm": float(np.mean([report.grad_norm for report in reports])),
            "num_steps": sum(report.num_steps for report in reports),
            "skipped_steps": sum(report.skipped_steps for report in reports),
        }

    def _policy_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        log_probs, entropy = self.model(pack, self.temperature, entropy_grad=self.ppo.entropy_coef != 0)
        loss, metrics = actor_loss(self.ppo, log_probs, entropy, pack, batch, self.correction)
        return loss, log_probs, metrics

    def _sft_loss(self, pack: Pack, batch: RolloutBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        log_probs, entropy = self.model(pack, temperature=1.0)
        return -log_probs, log_probs, {"sft_loss": -log_probs, "entropy": entropy}

    def _custom_loss(self, pack: Pack, batch: RolloutBatch, share: Share) -> tuple[Tensor, dict[str, Tensor]]:
        assert self.custom_loss is not None
        return self.custom_loss(self.model(pack, self.temperature, logits=True), pack, batch, share)
