"""Per-token estimates of KL(policy || reference) from the log-probs of sampled tokens."""

import torch
from torch import Tensor

from fsdp_backend.objective.ratio import probability_ratio


def approx_kl(
    log_probs: Tensor, ref_log_probs: Tensor, kl_loss_type: str, importance_log_ratio: Tensor | None = None
) -> Tensor:
    """Schulman's estimators (http://joschu.net/blog/kl-approx.html), with d = log_probs - ref_log_probs:
    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, low_var_kl = k3 clamped to [-10, 10].

    With `importance_log_ratio` (current minus old log-probs, clamped to [-20, 20]) the estimate is multiplied by its exp,
    before low_var_kl's clamp; the gradient flows through the ratio too. Same shape and dtype in and out.
    """
    difference = log_probs - ref_log_probs
    if kl_loss_type == "k1":
        kl = difference
    elif kl_loss_type == "k2":
        kl = difference.square() / 2
    elif kl_loss_type in ("k3", "low_var_kl"):
        # low_var_kl ends clamped to 10; unclamped here, exp overflows, and inf times the clamp's zero gradient is NaN.
        bounded = difference.clamp(min=-80) if kl_loss_type == "low_var_kl" else difference
        kl = torch.exp(-bounded) - 1 + bounded
    else:
        raise ValueError(f"kl_loss_type must be k1, k2, k3 or low_var_kl, got {kl_loss_type!r}")
    if importance_log_ratio is not None:
        kl = probability_ratio(importance_log_ratio) * kl
    return kl.clamp(-10, 10) if kl_loss_type == "low_var_kl" else kl
