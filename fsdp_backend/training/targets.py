"""From rewards, values and log-probs to the critic's returns and the actor's advantages. Pure; every process gets the same."""

import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig
from fsdp_backend.objective.advantages import discounted_returns, gae, length_adaptive_lambda, whiten
from fsdp_backend.objective.kl import approx_kl
from fsdp_backend.objective.token_rewards import token_rewards


def with_returns(batch: RolloutBatch, ppo: PPOConfig) -> RolloutBatch:
    """Add the critic's targets, `returns`, to a batch that has `values`, and `log_probs` and `ref_log_probs` if kl_coef is
    set."""
    lambd = ppo.lambd if ppo.critic_lambd is None else ppo.critic_lambd
    _, returns = _gae(batch, ppo, lambd)
    return batch.with_columns(returns=returns.numpy())


def with_advantages(batch: RolloutBatch, ppo: PPOConfig) -> RolloutBatch:
    """Add the actor's `advantages`, by ppo.advantage_estimator.

    For ppo the batch has `values`; lambda is lambd or the length-adaptive one. The group estimators take `reward` as already
    normalised within its group (objective/group_baseline.py). With kl_coef set, `log_probs` and `ref_log_probs` are there too,
    and the token rewards are those of the critic's targets.
    """
    mask, offsets = batch.tensor("loss_mask"), batch.tensor("response_offsets")
    if ppo.advantage_estimator == "ppo":
        lambd = ppo.lambd if ppo.lambd_alpha is None else length_adaptive_lambda(mask, offsets, ppo.lambd_alpha)
        advantages, _ = _gae(batch, ppo, lambd)
    elif ppo.advantage_estimator == "reinforce_plus_plus":
        advantages = discounted_returns(_token_rewards(batch, ppo), offsets, ppo.gamma)
    else:
        advantages = torch.repeat_interleave(batch.tensor("reward"), offsets.diff())
        if (kl := kl_penalty(batch, ppo)) is not None:
            advantages = advantages - ppo.kl_coef * kl
    return batch.with_columns(advantages=normalized(advantages, batch, ppo).numpy())


def normalized(advantages: Tensor, batch: RolloutBatch, ppo: PPOConfig) -> Tensor:
    """The advantages, [R], whitened where normalize_advantages asks for it."""
    return whiten(advantages, batch.tensor("loss_mask")) if ppo.normalize_advantages else advantages


def _gae(batch: RolloutBatch, ppo: PPOConfig, lambd: float | Tensor) -> tuple[Tensor, Tensor]:
    mask, offsets = batch.tensor("loss_mask"), batch.tensor("response_offsets")
    return gae(batch.tensor("values"), _token_rewards(batch, ppo), mask, offsets, ppo.gamma, lambd)


def _token_rewards(batch: RolloutBatch, ppo: PPOConfig) -> Tensor:
    mask, offsets = batch.tensor("loss_mask"), batch.tensor("response_offsets")
    return token_rewards(batch.tensor("reward"), kl_penalty(batch, ppo), mask, offsets, ppo.kl_coef)


def kl_penalty(batch: RolloutBatch, ppo: PPOConfig) -> Tensor | None:
    """KL of policy and reference per token, [R], before kl_coef; None where that is 0."""
    if ppo.kl_coef == 0:
        return None
    return approx_kl(batch.tensor("log_probs"), batch.tensor("ref_log_probs"), ppo.kl_loss_type)
