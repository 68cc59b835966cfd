"""The few collectives that are not FSDP's own."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


def all_sum(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """Sum over the ranks of the mesh, in place; the same on all of them."""
    dist.all_reduce(tensor, group=mesh.get_group())
    return tensor


def all_sum_metrics(metrics: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, float]:
    """Sum each scalar over the ranks, in one collective. Every rank must hold the same names."""
    if not metrics:
        return {}
    names = sorted(metrics)
    totals = all_sum(torch.stack([metrics[name].detach().double() for name in names]), mesh)
    return dict(zip(names, totals.tolist(), strict=True))
