"""From rewards, values and log-probs to the actor's advantages and the critic's returns. Pure; every process gets the same."""

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig
from fsdp_backend.objective.advantages import gae, length_adaptive_lambda, whiten
from fsdp_backend.objective.kl import approx_kl
from fsdp_backend.objective.token_rewards import token_rewards


def with_targets(batch: RolloutBatch, ppo: PPOConfig) -> RolloutBatch:
    """Add `advantages` and `returns` to a batch that has `values` (and `log_probs` and `ref_log_probs` if kl_coef is set).

    The advantages use lambd (or the length-adaptive one), the returns critic_lambd; both the same values and token rewards.
    """
    mask, offsets, values = batch.tensor("loss_mask"), batch.tensor("response_offsets"), batch.tensor("values")
    kl = None
    if ppo.kl_coef != 0:
        kl = approx_kl(batch.tensor("log_probs"), batch.tensor("ref_log_probs"), ppo.kl_loss_type)
    rewards = token_rewards(batch.tensor("reward"), kl, mask, offsets, ppo.kl_coef)

    lambd = ppo.lambd if ppo.lambd_alpha is None else length_adaptive_lambda(mask, offsets, ppo.lambd_alpha)
    critic_lambd = ppo.lambd if ppo.critic_lambd is None else ppo.critic_lambd
    advantages, _ = gae(values, rewards, mask, offsets, ppo.gamma, lambd)
    _, returns = gae(values, rewards, mask, offsets, ppo.gamma, critic_lambd)
    if ppo.normalize_advantages:
        advantages = whiten(advantages, mask)
    return batch.with_columns(advantages=advantages.numpy(), returns=returns.numpy())
