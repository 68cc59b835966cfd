"""The guarded optimizer step."""

import copy
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from fsdp_backend.config import RoleConfig
from fsdp_backend.training.optimizer import build_optimizer, clip_and_step
from tests.worlds import run_world


def sharded_linear(mesh: DeviceMesh) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    fully_shard(model, mesh=mesh)
    return model, build_optimizer(model, RoleConfig(hf_checkpoint="", lr=0.1, weight_decay=0.5))


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states: list[dict[str, Any]] = [optimizer.state[p] for p in model.parameters()]
    tensors = [p.to_local() for p in model.parameters()]  # type: ignore[attr-defined]
    tensors += [state[key].to_local() for state in states for key in ("exp_avg", "exp_avg_sq")]
    tensors += [state["step"] for state in states]
    return copy.deepcopy([t.detach() for t in tensors])


def one_rank_has_a_bad_gradient(mesh: DeviceMesh, bad: float) -> tuple[bool, bool, bool]:
    model, optimizer = sharded_linear(mesh)
    model(torch.ones(2, 6)).sum().backward()
    _, first = clip_and_step(optimizer, model.parameters(), clip_grad=1.0)
    before = snapshot(model, optimizer)
    optimizer.zero_grad()
    inputs = torch.ones(2, 6)
    if mesh.get_local_rank() == mesh.size() - 1:
        inputs[0, 0] = bad
    model(inputs).sum().backward()
    _, second = clip_and_step(optimizer, model.parameters(), clip_grad=1.0)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, snapshot(model, optimizer), strict=True))
    return first, second, unchanged


def test_a_non_finite_gradient_on_one_rank_skips_the_step_on_all_and_leaves_everything_alone() -> None:
    for bad in (float("nan"), float("inf")):
        for first, second, unchanged in run_world(2, one_rank_has_a_bad_gradient, bad):
            assert first
            assert not second
            assert unchanged


def norms(mesh: DeviceMesh, clip_grad: float) -> tuple[float, float]:
    model, optimizer = sharded_linear(mesh)
    model(torch.full((2, 6), 10.0)).sum().backward()
    reported, _ = clip_and_step(optimizer, model.parameters(), clip_grad)
    after = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return reported, float(after.full_tensor())  # type: ignore[attr-defined]


def test_clipping_scales_the_gradient_to_the_limit_and_reports_the_norm_before() -> None:
    # d(sum)/dW is 20 in each of 24 entries and 2 in each of 4 biases.
    expected = (24 * 20.0**2 + 4 * 2.0**2) ** 0.5
    for reported, after in run_world(2, norms, 1.5):
        assert abs(reported - expected) < 1e-3
        assert abs(after - 1.5) < 1e-4
    for reported, after in run_world(2, norms, 0.0):
        assert abs(reported - expected) < 1e-3
        assert abs(after - expected) < 1e-3


def decays(mesh: DeviceMesh) -> dict[int, float]:
    _, optimizer = sharded_linear(mesh)
    return {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}


def test_weight_decay_is_on_matrices_only() -> None:
    assert run_world(1, decays)[0] == {2: 0.5, 1: 0.0}
