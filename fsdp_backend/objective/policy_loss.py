"""The clipped surrogate of PPO, per token."""

import torch
from torch import Tensor

# The ratio is clipped at a few tenths; past e^20 the exp could only overflow, and a NaN gradient would follow.
_MAX_LOG_RATIO = 20.0


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float,
    eps_clip_c: float | None = None,
) -> tuple[Tensor, Tensor]:
    """max(-A * ratio, -A * clip(ratio, 1 - eps_clip, 1 + eps_clip_high)) (PPO, arXiv 1707.06347, eq. 7).

    With `eps_clip_c` the loss of a negative advantage is at most -A * eps_clip_c (dual clip, arXiv 1912.09729). The log-ratio
    is clamped to [-20, 20] before the exp, as miles and verl do and slime does not.

    Returns: the loss, and 1.0 where the clipped term is strictly the larger; both [R], not yet masked.
    """
    ratio = torch.exp((log_probs - old_log_probs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    free = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(free, clipped)
    clip_fraction = (clipped > free).to(loss.dtype)
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss)
    return loss, clip_fraction
