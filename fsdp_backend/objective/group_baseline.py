"""Baselines from the other responses to the same prompt, in place of a critic."""

import torch
from torch import Tensor


def group_normalized_rewards(rewards: Tensor, group: Tensor, by_deviation: bool) -> Tensor:
    """Each reward minus the mean of its group; `by_deviation` also divides by the group's standard deviation (GRPO, arXiv
    2402.03300, section 4.1.2), the unbiased one, plus 1e-6.

    Args:
        rewards: [n] float, one a sample.
        group: [n] int64, samples of one prompt have the same number.

    Returns:
        [n] of the dtype of `rewards`, computed in float64: the rounded mean of equal rewards would otherwise be a signal. A
        group of one, or of equal rewards, gets 0.
    """
    _, member = torch.unique(group, return_inverse=True)
    exact = rewards.double()
    size = torch.bincount(member).double()
    mean = torch.zeros_like(size).index_add(0, member, exact) / size
    centred = exact - mean[member]
    lowest = torch.full_like(size, torch.inf).scatter_reduce(0, member, exact, "amin")
    highest = torch.full_like(size, -torch.inf).scatter_reduce(0, member, exact, "amax")
    centred = torch.where((lowest == highest)[member], 0, centred)
    if by_deviation:
        variance = torch.zeros_like(size).index_add(0, member, centred.square()) / (size - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[member] + 1e-6)
    return centred.to(rewards.dtype)
