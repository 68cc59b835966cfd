"""The optimizer of a role's sharded parameters, and the step that a non-finite gradient cannot poison."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from fsdp_backend import device
from fsdp_backend.config import RoleConfig


def build_optimizer(model: nn.Module, role: RoleConfig) -> Optimizer:
    """Two groups: matrices decay, vectors (norms, biases) do not. The clock sets the rate of both.

    AdamW's moments are allocated here, so that what fits at the start fits to the end. Raises ValueError if `role.optimizer`
    is neither adam nor the dotted path of something that makes an optimizer.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": role.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if role.optimizer != "adam":
        return _from_path(role.optimizer, groups, role.lr)
    betas, fused = (role.adam_beta1, role.adam_beta2), device.has_fused_optimizers()
    optimizer = AdamW(groups, lr=role.lr, betas=betas, eps=role.adam_eps, fused=fused)
    _allocate(optimizer)
    return optimizer


def _allocate(optimizer: AdamW) -> None:
    """Let AdamW make its state by a step that changes nothing, and set it back to before the first step."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()


def _from_path(path: str, groups: list[dict[str, Any]], lr: float) -> Optimizer:
    module, _, name = path.rpartition(".")
    try:
        make: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"optimizer {path!r} is neither adam nor the path of an optimizer, module.Class: {error}") from error
    optimizer = make(groups, lr=lr)
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer {path} made a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    return optimizer


def move_state(optimizer: Optimizer, place: torch.device) -> None:
    """Move the moments to `place`; step counters stay where their optimizer wants them."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, DTensor):
                state[name] = value.to(place)


def clip_and_step(optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_grad: float) -> tuple[float, bool]:
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
