"""Probability ratios from log-probs."""

import torch
from torch import Tensor

# Ratios are clipped, or masked, at a few units; past e^20 the exp could only overflow, and a NaN gradient would follow.
MAX_LOG_RATIO = 20.0


def probability_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), with log_ratio clamped to [-20, 20], as miles and verl do and slime does not. Same shape and dtype."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_mean(per_token: Tensor, sample: Tensor, samples: int) -> Tensor:
    """The mean of each sample's tokens, at every one of them.

    Args:
        per_token: [R] float, of trainable tokens.
        sample: [R] int64, which sample a token belongs to, from 0.
        samples: how many there are.

    Returns:
        [R]; the gradient flows to all tokens of a sample.
    """
    totals = per_token.new_zeros(samples).index_add(0, sample, per_token)
    tokens = per_token.new_zeros(samples).index_add(0, sample, torch.ones_like(per_token))
    return (totals / tokens.clamp(min=1))[sample]
