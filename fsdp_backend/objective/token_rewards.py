"""From one reward a sample to one reward a response token."""

import torch
from torch import Tensor


def token_rewards(rewards: Tensor, kl: Tensor | None, loss_mask: Tensor, offsets: Tensor, kl_coef: float) -> Tensor:
    """-kl_coef * kl on every trainable token, and the sample's reward on its last trainable token (arXiv 1909.08593, eq. 2).

    The actor's advantages and the critic's targets both start from these, so the KL penalty is in both or in neither.

    Args:
        rewards: [n] float, one a sample.
        kl: [R] float, KL estimate per response token; None counts as 0.
        loss_mask: [R], nonzero = trainable.
        offsets: [n + 1] int64, where a sample's response tokens begin and end.

    Returns:
        [R] float, 0 at masked tokens. A sample without a trainable token drops its reward.
    """
    trainable = loss_mask.bool()
    shaped = torch.zeros_like(loss_mask, dtype=rewards.dtype)
    if kl is not None:
        shaped = torch.where(trainable, -kl_coef * kl.to(rewards.dtype), shaped)
    sample = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
    position = torch.arange(len(loss_mask))
    last = torch.full((len(rewards),), -1).scatter_reduce(0, sample[trainable], position[trainable], "amax")
    rewarded = last >= 0
    shaped[last[rewarded]] += rewards[rewarded]
    return shaped
