"""The actor's loss from log-probs and entropies: which objective, of which ratio, corrected in which way, and what is added."""

from typing import Protocol

from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.config import PPOConfig
from fsdp_backend.objective.importance import importance_weights, off_policy_sequence_mask
from fsdp_backend.objective.kl import approx_kl
from fsdp_backend.objective.policy_loss import cispo_loss, double_sided_loss, policy_loss
from fsdp_backend.objective.ratio import probability_ratio, sequence_mean

Metrics = dict[str, Tensor]


class Correction(Protocol):
    """What takes the place of the built-in importance weight."""

    def __call__(
        self, loss: Tensor, *, log_probs: Tensor, rollout_log_probs: Tensor, pack: Pack, batch: RolloutBatch
    ) -> tuple[Tensor, Tensor | None, Metrics]:
        """From the policy-gradient loss, and the log-probs before the update and of the rollout, to the corrected loss, a mask
        of what the whole loss keeps (None: all of it), and metrics; all [R] of the pack."""


def actor_loss(
    ppo: PPOConfig,
    log_probs: Tensor,
    entropy: Tensor,
    pack: Pack,
    batch: RolloutBatch,
    correction: Correction | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss and metrics of each response token of the pack, [R]: policy gradient - entropy bonus + KL loss.

    `log_probs` and `entropy` are those of now. Log-probs from before the update are the batch's, or where it has none (an
    update of one step) the same as now. `correction` takes the place of the built-in importance weight.
    """
    old = log_probs.detach() if batch.log_probs is None else pack.column(batch.log_probs)
    pg_loss, kept, metrics = _policy_gradient(ppo, log_probs, old, pack, batch, correction)
    loss = pg_loss - ppo.entropy_coef * entropy
    metrics = {"pg_loss": pg_loss, "entropy": entropy, **metrics}
    if ppo.use_kl_loss:
        ratio = log_probs - old if ppo.use_unbiased_kl else None
        metrics["kl_loss"] = approx_kl(log_probs, pack.column(batch.column("ref_log_probs")), ppo.kl_loss_type, ratio)
        loss = loss + ppo.kl_loss_coef * metrics["kl_loss"]
    if kept is not None:
        loss, metrics["pg_loss"] = loss * kept, pg_loss * kept
    if batch.rollout_log_probs is not None:
        ours = log_probs.detach() if ppo.use_rollout_logprobs else old
        metrics["train_rollout_logprob_abs_diff"] = (ours - pack.column(batch.rollout_log_probs)).abs()
    return loss, {"loss": loss, **metrics}


def _policy_gradient(
    ppo: PPOConfig, log_probs: Tensor, old: Tensor, pack: Pack, batch: RolloutBatch, correction: Correction | None
) -> tuple[Tensor, Tensor | None, Metrics]:
    advantages, log_ratio = pack.column(batch.column("advantages")), log_probs - old
    if ppo.advantage_estimator == "gspo":
        log_ratio = _mean_of_sample(log_ratio, pack)
    loss, clipped = _objective(ppo, log_ratio, log_probs, advantages)
    metrics = {"pg_clipfrac": clipped, "ppo_kl": -log_ratio}
    if ppo.use_opsm:
        probable = off_policy_sequence_mask(_mean_of_sample(log_ratio.detach(), pack), advantages, ppo.opsm_delta)
        loss, metrics["opsm_clipfrac"] = loss * probable, 1 - probable
    if not ppo.use_tis:
        return loss, None, metrics
    rollout = pack.column(batch.column("rollout_log_probs"))
    correct = correction or _importance(ppo)
    loss, kept, corrected = correct(loss, log_probs=old, rollout_log_probs=rollout, pack=pack, batch=batch)
    return loss, kept, {**metrics, "ois": probability_ratio(log_ratio), **corrected}


def _objective(ppo: PPOConfig, log_ratio: Tensor, log_probs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    high = ppo.eps_clip if ppo.eps_clip_high is None else ppo.eps_clip_high
    if ppo.dis_eps_low is not None and ppo.dis_eps_high is not None:
        return double_sided_loss(log_ratio, advantages, ppo.dis_eps_low, ppo.dis_eps_high)
    if ppo.advantage_estimator == "cispo":
        return cispo_loss(log_ratio, log_probs, advantages, ppo.eps_clip, high)
    return policy_loss(log_ratio, advantages, ppo.eps_clip, high, ppo.eps_clip_c)


def _importance(ppo: PPOConfig) -> Correction:
    def weigh(
        loss: Tensor, *, log_probs: Tensor, rollout_log_probs: Tensor, pack: Pack, batch: RolloutBatch
    ) -> tuple[Tensor, Tensor | None, Metrics]:
        weights, metrics = importance_weights(log_probs, rollout_log_probs, ppo.tis_mode, ppo.tis_clip_low, ppo.tis_clip)
        return loss * weights, None, metrics

    return weigh


def _mean_of_sample(per_token: Tensor, pack: Pack) -> Tensor:
    return sequence_mean(per_token, pack.response_lengths)
