"""A group with a process that is no rank of ours, here played by the world's second rank, which joins as SGLang does."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.distributed.bridge import Bridge
from tests.worlds import run_world

NAME, TIMEOUT = "weights", timedelta(seconds=20)


def join_as_an_engine(address: str, port: int) -> dist.ProcessGroup:
    store, rank, size = next(rendezvous(f"tcp://{address}:{port}", 1, 2, timeout=TIMEOUT))
    group: dist.ProcessGroup
    group, _ = c10d._new_process_group_helper(
        size, rank, [], dist.Backend("gloo"), PrefixStore(NAME, store), group_name=c10d.GroupName(NAME), timeout=TIMEOUT
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


def exchange(mesh: DeviceMesh) -> list[float]:
    """Three tensors, of which one follows the bridge's being opened anew."""
    got = []
    for number in range(3):
        bridge = Bridge("127.0.0.1", NAME, 2, TIMEOUT) if mesh.get_rank() == 0 else None
        meeting = [None if bridge is None else (bridge.address, bridge.port)]
        dist.broadcast_object_list(meeting, src=0)
        assert meeting[0] is not None
        group = join_as_an_engine(*meeting[0]) if bridge is None else bridge.open()
        tensor = torch.full((3,), float(number + 1) if bridge is not None else 0.0)
        work = dist.broadcast(tensor, src=0, group=group, async_op=True)
        assert work is not None
        work.wait()
        got.append(float(tensor.sum()))
        dist.barrier()
        if bridge is None:
            dist.destroy_process_group(group)
        else:
            bridge.close()
    return got


def test_what_the_first_rank_broadcasts_arrives_also_over_a_group_opened_anew() -> None:
    assert run_world(2, exchange) == [[3.0, 6.0, 9.0]] * 2


def open_alone(mesh: DeviceMesh) -> str:
    """What it says when nobody comes."""
    bridge = Bridge("127.0.0.1", NAME, 2, timedelta(seconds=1))
    with pytest.raises(RuntimeError) as caught:
        bridge.open()
    bridge.close()
    return type(caught.value).__name__


def test_one_that_waits_in_vain_gives_up() -> None:
    (name,) = run_world(1, open_alone)
    assert name
