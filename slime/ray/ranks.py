"""The ranks of a role, as Ray actors."""

import socket
import threading
from typing import Any

import ray

from fsdp_backend.distributed.world import Rendezvous
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.group import TrainGroup
from slime.backends.fsdp_utils.worker import RoleName
from slime.ray.watch import Watch


class RankProcess:
    """A process for one rank. Torch is imported when the worker is built, so that all ranks import at once."""

    def address(self) -> tuple[str, int]:
        """Where the ranks of this role can meet: this node, and a port free at this moment."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        return ray.util.get_node_ip_address(), port

    def build(self, role: RoleName, config: RunConfig, meeting: Rendezvous) -> None:
        """Join the others and load the model."""
        from slime.backends.fsdp_utils.worker import TrainWorker

        self.worker = TrainWorker(role, config, meeting)

    def run(self, verb: str, *args: Any) -> Any:
        """A TrainWorker's verb. Only rank 0's answer is used, so only rank 0 sends one."""
        answer = getattr(self.worker, verb)(*args)
        return answer if self.worker.rank == 0 else None

    @ray.method(concurrency_group="life")  # type: ignore[untyped-decorator]
    def live(self) -> None:
        """Never returns: whoever waits for it learns of this process's death."""
        threading.Event().wait()


class Running:
    """A verb running on all ranks."""

    def __init__(self, references: list[Any], watch: Watch) -> None:
        self.references, self.watch = references, watch

    def result(self) -> Any:
        """Rank 0's answer, once every rank is done."""
        return self.watch.get_all(self.references)[0]


class RayGroup(TrainGroup):
    """The ranks of one role."""

    def __init__(self, role: RoleName, config: RunConfig, placement: list[dict[str, Any]], watch: Watch) -> None:
        """Starts a rank for each entry of `placement` (Ray options) and begins to load; `wait_until_built` waits for it."""
        world_size = len(placement)
        self.watch = watch
        process = ray.remote(concurrency_groups={"life": 1})(RankProcess)
        self.ranks = [process.options(**place).remote() for place in placement]
        for rank, actor in enumerate(self.ranks):
            watch.add(f"{role} rank {rank}", actor)
        address, port = ray.get(self.ranks[0].address.remote())
        timeout = config.cluster.distributed_timeout_minutes
        meetings = [Rendezvous(rank, world_size, 0, address, port, timeout) for rank in range(world_size)]
        self.built = [rank.build.remote(role, config, meeting) for rank, meeting in zip(self.ranks, meetings, strict=True)]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def wait_until_built(self) -> None:
        """Returns when every rank has its model."""
        self.watch.get_all(self.built)

    def submit(self, verb: str, *args: Any) -> Running:
        """Start the verb everywhere; large arguments are stored once and mapped by every rank."""
        shared = [ray.put(argument) for argument in args]
        return Running([rank.run.remote(verb, *shared) for rank in self.ranks], self.watch)

    def close(self) -> None:
        """End the processes."""
        for rank in self.ranks:
            ray.kill(rank)
