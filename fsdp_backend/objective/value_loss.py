"""The squared error of a value function, per token."""

from typing import Literal

import torch
from torch import Tensor


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | Literal["none"]
) -> tuple[Tensor, Tensor]:
    """max((clip(v) - R)^2, (v - R)^2) with clip(v) = v_old + clamp(v - v_old, -value_clip, value_clip); "none": (v - R)^2.

    From the PPO reference implementation (openai/baselines ppo2); as in slime there is no factor 1/2.

    Returns: the loss, and 1.0 where v is more than value_clip away from v_old; both [R], not yet masked.
    """
    free = (values - returns).square()
    if value_clip == "none":
        return free, torch.zeros_like(free)
    moved = values - old_values
    clipped = old_values + moved.clamp(-value_clip, value_clip)
    loss = torch.maximum((clipped - returns).square(), free)
    return loss, (moved.abs() > value_clip).to(loss.dtype)
