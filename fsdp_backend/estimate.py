"""How much memory a rank of a role will need, found out without needing it.

The role's own code runs on fake tensors, which have shapes and no memory, as rank 0 of a world that does not exist: the model
is built, sharded and trained on the largest micro-batches of its plan, and every storage that comes and goes is counted. The
buffers inside kernels, what an allocator wastes, and the libraries' own memory are not in it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.config import RoleConfig
from fsdp_backend.live_bytes import LiveBytes
from fsdp_backend.model.loading import build_policy, build_value
from fsdp_backend.model.logprob_head import LogProbHead
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import local_bytes, reduce_gradients, reshard
from fsdp_backend.model.value import ValueModel
from fsdp_backend.training.learner import Learner

Phase = Literal["rest", "forward", "update", "weight sync"]
PHASES: tuple[Phase, ...] = ("rest", "forward", "update", "weight sync")


@dataclass(frozen=True)
class RoleMemory:
    """Bytes of one rank: its parts, and for each phase what is alive at the worst moment."""

    weights: int
    """Shards of the parameters, float32."""
    optimizer: int
    """Shards of the moments."""
    reference: int
    """Shards of the frozen reference model's parameters."""
    gradients: int
    """Whole where their reduction is deferred over several micro-batches, else shards."""
    activations: int
    """What a micro-batch's forward keeps for its backward, with the parameters that stay gathered."""
    head: int
    """What the log-prob head works with in its backward, besides the gradient of its weight."""
    peak: dict[Phase, int]

    @property
    def most(self) -> int:
        """Bytes at the worst moment of all."""
        return max(self.peak.values())


def estimate(
    kind: Literal["actor", "critic"], role: RoleConfig, world_size: int, batch: RolloutBatch, reference: str | None = None
) -> RoleMemory:
    """Memory of a rank of an actor (beside its frozen `reference`, if any) or a critic that trains on rollouts like `batch`.

    Reads the checkpoint's config only. Must run in a process without a process group; leaves none. Raises ValueError for a
    model that would not load.
    """
    build: Callable[..., Any] = build_policy if kind == "actor" else build_value
    with _imaginary_world(world_size) as mesh, FakeTensorMode() as fake, LiveBytes() as live:
        model = build(role.hf_checkpoint, role, mesh)
        learner = Learner(model, role, mesh, num_rollout=1)
        frozen = build_policy(reference, replace(role, gradient_checkpointing=False), mesh) if reference else None
        packs = [_faked(p, fake) for p in _largest(learner, batch)]
        rest = live.now()
        forward = live.peak_of(lambda: _forward(model, packs[0]))
        update, activations = _update(learner, packs, live)
        trained = [p for p in model.parameters() if p.requires_grad]
        whole = [p.numel() * p.element_size() for p in trained]
        deferred = role.fsdp_defer_grad_reduce and len(packs) > 1
        return RoleMemory(
            weights=local_bytes(model.parameters()),
            optimizer=local_bytes(v for state in learner.optimizer.state.values() for v in state.values()),
            reference=0 if frozen is None else local_bytes(frozen.parameters()),
            gradients=sum(whole) if deferred else local_bytes(trained),
            activations=activations,
            head=_head(model, packs[0], role.bf16, live) if kind == "actor" else 0,
            peak={"rest": rest, "forward": forward, "update": update, "weight sync": rest + max(whole)},
        )


@contextmanager
def _imaginary_world(size: int) -> Iterator[DeviceMesh]:
    """Rank 0 of ranks that answer nothing: collectives return at once, with tensors of the right shape."""
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield init_device_mesh(device.current().type, (size,))
    finally:
        dist.destroy_process_group()


def _largest(learner: Learner, batch: RolloutBatch) -> list[Pack]:
    """The first two micro-batches of rank 0's first step, the costliest of the plan; one where there is one."""
    step = learner.plan(batch)[0]
    return [pack(batch, samples, learner.device) for samples in step.ranks[0][:2]]


def _faked(packed: Pack, fake: FakeTensorMode) -> Pack:
    tensors = {f.name: getattr(packed, f.name) for f in fields(packed) if isinstance(getattr(packed, f.name), Tensor)}
    faked: dict[str, Any] = {name: fake.from_tensor(tensor) for name, tensor in tensors.items()}
    return replace(packed, **faked)


def _predict(model: PolicyModel | ValueModel, packed: Pack) -> Tensor:
    prediction: Tensor = model(packed, 1.0)[0] if isinstance(model, PolicyModel) else model(packed)
    return prediction


def _forward(model: PolicyModel | ValueModel, packed: Pack) -> None:
    with torch.no_grad():
        _predict(model, packed)
    reshard(model)


def _update(learner: Learner, packs: list[Pack], live: LiveBytes) -> tuple[int, int]:
    """An optimizer step; returns its peak, and what was kept for backward when the head's turn came."""
    start = activations = 0

    def note(*_: Any) -> None:
        nonlocal activations
        activations = max(activations, live.now() - start)

    def step() -> None:
        nonlocal start
        for number, packed in enumerate(packs, start=1):
            start = live.now()
            reduce_gradients(learner.model, number == len(packs) or not learner.role.fsdp_defer_grad_reduce)
            torch.autograd.backward(_predict(learner.model, packed).sum())
        learner.optimizer.step()
        learner.optimizer.zero_grad()
        reshard(learner.model)

    hook = learner.model.head.register_forward_pre_hook(note)
    peak = live.peak_of(step)
    hook.remove()
    return peak, activations


def _head(model: PolicyModel, packed: Pack, bf16: bool, live: LiveBytes) -> int:
    """Forward and backward of a head of the same size by itself."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    head = LogProbHead(model.head.in_features, model.head.out_features, bias=False, dtype=dtype)
    hidden = torch.empty(len(packed.targets), head.in_features, dtype=dtype, requires_grad=True)
    before = live.now()
    peak = live.peak_of(lambda: torch.autograd.backward(head(hidden, packed.targets, 1.0)[0].sum()))
    return peak - before - head.weight.numel() * head.weight.element_size()
