"""Probability ratios from log-probs."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Ratios are clipped, or masked, at a few units; past e^20 the exp could only overflow, and a NaN gradient would follow.
MAX_LOG_RATIO = 20.0


def probability_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), with log_ratio clamped to [-20, 20], as miles and verl do and slime does not. Same shape and dtype."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_mean(per_token: Tensor, lengths: Sequence[int]) -> Tensor:
    """The mean of each sample's tokens, at every one of them.

    Args:
        per_token: [R] float, of trainable tokens, one sample's after another's.
        lengths: how many each sample has; 0 is fine.

    Returns:
        [R]; the gradient flows to all tokens of a sample. Summed sample by sample: an index_add would not give the same bits
        twice on an accelerator.
    """
    parts = torch.split(per_token, list(lengths)) if len(per_token) else ()
    return torch.cat([per_token[:0], *(part.mean().expand(len(part)) for part in parts if len(part))])
