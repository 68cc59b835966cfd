"""How the time of a whole iteration grows with the samples, and shrinks with the ranks."""

import time
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tests import worlds
from tests.bench.engine import alone, open_session
from tests.bench.setting import Setting, make_batch, repeated
from tests.bench.table import Row, fastest, rounds_of
from tests.bench.timing import alternate, settle, threads, timed

RANKS = 2
TIMEOUT_SECONDS = 3600


def rows(setting: Setting) -> list[Row]:
    """Twice the samples, then twice the ranks."""
    return [_samples(setting), _ranks(setting)]


def _samples(setting: Setting) -> Row:
    batch = make_batch(setting)
    twice = repeated(batch, 2)
    with threads(setting.threads), alone() as mesh:
        session = open_session(setting, mesh)
        double, single = alternate(
            setting.rounds, timed(lambda: session.iterate(twice, 0)), timed(lambda: session.iterate(batch, 0))
        )
    ratio = fastest(double) / fastest(single)
    return Row("time(2n) / time(n)", fastest(double), fastest(single), ratio, "≤ 2.05", rounds=rounds_of(double, single))


def _ranks(setting: Setting) -> Row:
    """One thread a rank. A world is started anew for every round, which is not part of the time."""
    one, two = alternate(setting.rounds, lambda: world_seconds(1, setting), lambda: world_seconds(RANKS, setting))
    ratio = fastest(one) / fastest(two)
    return Row(f"{RANKS} ranks / 1 rank, speed-up", fastest(two), fastest(one), ratio, "≥ 1.8", rounds=rounds_of(two, one))


def world_seconds(ranks: int, setting: Setting, **role: Any) -> float:
    """One whole iteration by `ranks` ranks of one thread each, from barrier to barrier; `role` goes to RoleConfig."""
    with patch.object(worlds, "TIMEOUT_SECONDS", TIMEOUT_SECONDS):
        seconds: list[float] = worlds.run_world(ranks, _iteration_seconds, setting, role)
    return max(seconds)


def _iteration_seconds(mesh: DeviceMesh, setting: Setting, role: dict[str, Any]) -> float:
    session = open_session(setting, mesh, **role)
    batch = make_batch(setting)
    dist.barrier()
    start = time.perf_counter()
    session.iterate(batch, 0)
    settle()
    dist.barrier()
    return time.perf_counter() - start
