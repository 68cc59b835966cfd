"""What corrects a policy loss for responses that another policy sampled: an older one, or the same one in another engine's
numbers."""

from typing import Literal

import torch
from torch import Tensor

from fsdp_backend.objective.ratio import probability_ratio


def importance_weights(
    log_probs: Tensor, rollout_log_probs: Tensor, mode: Literal["truncate", "icepop"], low: float, high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights of the policy loss: the ratio of the policy before the update to the one that sampled, without a gradient.

    truncate: the ratio clamped to [low, high] (truncated importance sampling, as in arXiv 1802.01561). icepop: the ratio within
    [low, high] and 0 outside (IcePop, arXiv 2510.18855).

    Returns: weights [R], and metrics [R]: `tis` the ratio, `tis_clipfrac` 1.0 where it left the interval, `tis_abs` how far it
    is from 1.
    """
    ratio = probability_ratio((log_probs - rollout_log_probs).detach())
    clamped = ratio.clamp(low, high)
    inside = clamped == ratio
    weights = clamped if mode == "truncate" else torch.where(inside, ratio, 0)
    return weights, {"tis": ratio, "tis_clipfrac": (~inside).to(ratio.dtype), "tis_abs": (ratio - 1).abs()}


def off_policy_sequence_mask(sequence_log_ratio: Tensor, advantages: Tensor, opsm_delta: float) -> Tensor:
    """0.0 for tokens of negative advantage in a sample that has become improbable, else 1.0 (OPSM, from DeepSeek-V3.2,
    arXiv 2512.02556).

    `sequence_log_ratio` [R] is the mean over the sample of log-prob now minus log-prob before; improbable is one below
    -opsm_delta.
    """
    return (~((advantages < 0) & (-sequence_log_ratio > opsm_delta))).to(advantages.dtype)
