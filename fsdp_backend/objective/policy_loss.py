"""The policy-gradient losses, per token. `log_ratio` is log-prob now minus log-prob before; for GSPO (arXiv
2507.18071) its mean over the sample."""

import torch
from torch import Tensor

from fsdp_backend.objective.ratio import probability_ratio


def policy_loss(
    log_ratio: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float, eps_clip_c: float | None = None
) -> tuple[Tensor, Tensor]:
    """max(-A * ratio, -A * clip(ratio, 1 - eps_clip, 1 + eps_clip_high)) (PPO, arXiv 1707.06347, eq. 7).

    With `eps_clip_c` the loss of a negative advantage is at most -A * eps_clip_c (dual clip, arXiv 1912.09729).

    Returns: the loss, and 1.0 where the clipped term is strictly the larger; both [R], not yet masked.
    """
    ratio = probability_ratio(log_ratio)
    free = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(free, clipped)
    clip_fraction = (clipped > free).to(loss.dtype)
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss)
    return loss, clip_fraction


def cispo_loss(
    log_ratio: Tensor, log_probs: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """-w * A * log-prob, with w the ratio clipped to [1 - eps_clip, 1 + eps_clip_high] and no gradient through it (CISPO,
    arXiv 2506.13585): a clipped token keeps its gradient.

    Returns: the loss, and 1.0 where the ratio was clipped; both [R].
    """
    ratio = probability_ratio(log_ratio.detach())
    weight = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).to(log_probs.dtype)


def double_sided_loss(log_ratio: Tensor, advantages: Tensor, dis_eps_low: float, dis_eps_high: float) -> tuple[Tensor, Tensor]:
    """-A * ratio to the rollout policy where 1 - dis_eps_low < ratio < 1 + dis_eps_high, else 0 (SAO, arXiv 2607.07508, eq.
    1-3).

    The paper writes it with log-probs and a ratio without gradient; the gradient, -A * ratio * grad log-prob, is the same. A
    token outside the interval has none, whatever the sign of its advantage.

    Returns: the loss, and 1.0 where a token is masked; both [R].
    """
    ratio = probability_ratio(log_ratio)
    kept = (ratio > 1 - dis_eps_low) & (ratio < 1 + dis_eps_high)
    return -torch.where(kept, ratio, 0) * advantages, (~kept).to(ratio.dtype)
