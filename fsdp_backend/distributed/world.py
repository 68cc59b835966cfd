"""Joining and leaving the process group that a role's ranks share."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fsdp_backend import device


@dataclass(frozen=True)
class Rendezvous:
    """Where `world_size` processes meet. `address` None is for a world of one process, which opens no port."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: str | None = None
    port: int | None = None
    timeout_minutes: float = 10.0
    hosted: bool = False
    """Whether someone else answers at address and port, as torchrun does; else rank 0 does."""

    @classmethod
    def from_torchrun(cls) -> "Rendezvous":
        """What torchrun told this process; raises ValueError if it was not started by torchrun."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise ValueError(f"{', '.join(missing)} not set: start this with torchrun --nproc-per-node N …")
        rank, size, local, address, port = (os.environ[name] for name in names)
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(int(rank), int(size), int(local), address, int(port), hosted=hosted)


def join(meeting: Rendezvous) -> DeviceMesh:
    """Open the process group, once a process, and return the 1-D mesh over all its ranks."""
    device.select(meeting.local_rank)
    if not dist.is_initialized():
        if meeting.address is None or meeting.port is None:
            if meeting.world_size != 1:
                raise ValueError(f"{meeting.world_size} ranks need an address and a port to meet at")
            store: Store | None = HashStore()
        elif meeting.hosted:
            store = None  # torch finds torchrun's own store by the environment
        else:
            host = meeting.rank == 0
            wait = timedelta(minutes=meeting.timeout_minutes)
            store = TCPStore(meeting.address, meeting.port, meeting.world_size, is_master=host, timeout=wait)
        dist.init_process_group(
            device.collective_backend(),
            store=store,
            rank=meeting.rank,
            world_size=meeting.world_size,
            timeout=timedelta(minutes=meeting.timeout_minutes),
        )
    return init_device_mesh(device.current().type, (meeting.world_size,))


def leave() -> None:
    """Close the process group, if this process has one."""
    if dist.is_initialized():
        dist.destroy_process_group()
