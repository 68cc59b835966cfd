"""AdamW over a role's sharded parameters, and the step that a non-finite gradient cannot poison."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_backend.config import RoleConfig


def build_optimizer(model: nn.Module, role: RoleConfig) -> torch.optim.AdamW:
    """Two groups: matrices decay, vectors (norms, biases) do not. The clock sets the rate of both."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": role.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (role.adam_beta1, role.adam_beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=role.lr, betas=betas, eps=role.adam_eps)


def clip_and_step(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], clip_grad: float) -> tuple[float, bool]:
    """Clip to a global norm (0: off) and step. A non-finite norm skips the step and leaves parameters and moments alone.

    Returns: the gradient norm before clipping, the same on all ranks, and whether the step was taken.
    """
    parameters = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    total = norm.full_tensor() if isinstance(norm, DTensor) else norm
    finite = bool(torch.isfinite(total))
    if finite:
        if clip_grad > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip_grad, norm)
        optimizer.step()
    return float(total), finite
