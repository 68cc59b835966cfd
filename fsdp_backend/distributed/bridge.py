"""A process group with processes that are no ranks of ours: it stands beside the group that a role's ranks share."""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from fsdp_backend import device


class Bridge:
    """Rank 0 of such a group. The others join over TCP at `address` and `port`, under the group's name."""

    def __init__(self, address: str, name: str, size: int, timeout: timedelta) -> None:
        """Opens the port; `open` waits for the others."""
        self.address, self.name, self.size, self.timeout = address, name, size, timeout
        self.store = TCPStore(address, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        self.port: int = self.store.port
        self.group: dist.ProcessGroup | None = None

    def open(self) -> dist.ProcessGroup:
        """Returns when all have joined."""
        # torch has no public call for a group outside the world; SGLang makes its side of it by this one.
        self.group, _ = c10d._new_process_group_helper(
            self.size,
            0,
            [],
            dist.Backend(device.device_backend()),
            PrefixStore(self.name, self.store),
            group_name=c10d.GroupName(self.name),
            timeout=self.timeout,
        )
        c10d._world.pg_group_ranks[self.group] = {rank: rank for rank in range(self.size)}
        return self.group

    def close(self) -> None:
        """Leave the group: what the others still wait for fails."""
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None
