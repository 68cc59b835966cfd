"""The guarded optimizer step."""

import copy
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from fsdp_backend import device
from fsdp_backend.config import RoleConfig
from fsdp_backend.training.optimizer import build_optimizer, clip_and_step
from tests.worlds import run_world


def sharded_linear(mesh: DeviceMesh, optimizer: str = "adam") -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    fully_shard(model, mesh=mesh)
    return model, build_optimizer(model, RoleConfig(hf_checkpoint="", lr=0.1, weight_decay=0.5, optimizer=optimizer))


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


def fresh_state(mesh: DeviceMesh) -> tuple[bool, bool, list[dict[str, Any]]]:
    torch.manual_seed(0)
    untouched = [p.detach().clone() for p in torch.nn.Linear(6, 4).parameters()]
    model, optimizer = sharded_linear(mesh)
    kept = all(
        torch.equal(p.full_tensor(), u)  # type: ignore[attr-defined]
        for p, u in zip(model.parameters(), untouched, strict=True)
    )
    no_gradient = all(p.grad is None for p in model.parameters())
    states = [
        {name: float(t.full_tensor().abs().sum() if name != "step" else t) for name, t in optimizer.state[p].items()}
        for p in model.parameters()
    ]
    return kept, no_gradient, states


def test_adams_state_is_there_from_the_start_and_nothing_else_has_changed() -> None:
    for kept, no_gradient, states in run_world(2, fresh_state):
        assert kept
        assert no_gradient
        assert states == [{"step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}] * 2


def one_step(mesh: DeviceMesh, optimizer: str) -> tuple[str, bool | None, list[torch.Tensor]]:
    model, made = sharded_linear(mesh, optimizer)
    model(torch.arange(12.0).view(2, 6)).square().sum().backward()
    clip_and_step(made, model.parameters(), clip_grad=0.0)
    weights = [p.full_tensor().detach() for p in model.parameters()]  # type: ignore[attr-defined]
    return type(made).__name__, made.defaults.get("fused"), weights


def test_the_first_step_is_that_of_plain_adamw_and_fused_where_the_device_can() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    groups = [{"params": [model.weight], "weight_decay": 0.5}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95), eps=1e-8)
    model(torch.arange(12.0).view(2, 6)).square().sum().backward()
    optimizer.step()
    for name, fused, weights in run_world(2, one_step, "adam"):
        assert (name, fused) == ("AdamW", device.has_fused_optimizers())
        for got, want in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(got, want.detach())


def test_another_optimizer_comes_by_its_dotted_path() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    groups = [{"params": [model.weight], "weight_decay": 0.5}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    model(torch.arange(12.0).view(2, 6)).square().sum().backward()
    optimizer.step()
    for name, _, weights in run_world(2, one_step, "torch.optim.SGD"):
        assert name == "SGD"
        for got, want in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(got, want.detach())


@pytest.mark.parametrize("path", ["sgd", "torch.optim.Nothing", "nowhere.Adam", "collections.OrderedDict"])
def test_what_makes_no_optimizer_is_an_error_that_names_it(path: str) -> None:
    model = torch.nn.Linear(6, 4)
    with pytest.raises(ValueError, match=f"optimizer '?{path}"):
        build_optimizer(model, RoleConfig(hf_checkpoint="", optimizer=path))
