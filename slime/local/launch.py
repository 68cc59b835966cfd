"""Everything in this process, one rank a role: a breakpoint anywhere stops the whole run."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fsdp_backend import device
from fsdp_backend.distributed.world import Rendezvous
from slime.arguments.errors import UserError
from slime.arguments.parse import as_flags
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster, world_sizes
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.server import EmbeddedServer
from slime.backends.engines import Engines
from slime.backends.fsdp_utils.group import TrainGroup
from slime.backends.fsdp_utils.worker import RoleName, TrainWorker


@dataclass(frozen=True)
class Done:
    """A verb that has already run."""

    value: Any

    def result(self) -> Any:
        """What it returned."""
        return self.value


class LocalGroup(TrainGroup):
    """A role of one rank."""

    def __init__(self, role: RoleName, config: RunConfig) -> None:
        self.worker = TrainWorker(role, config, Rendezvous())

    @property
    def size(self) -> int:
        """One, whatever the flags say: there is one process."""
        return 1

    def submit(self, verb: str, *args: Any) -> Done:
        """Run the verb to its end. A ValueError is about the input: one line."""
        try:
            return Done(getattr(self.worker, verb)(*args))
        except ValueError as error:
            raise UserError(as_flags(str(error))) from error

    def close(self) -> None:
        """Leave the process group."""
        self.worker.close()


class LocalEngine(Engines):
    """The one engine, in this process: it dies with the run."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.address = server.host, server.port
        self.urls = [f"http://{server.host}:{server.port}"]

    def replace_dead(self, folder: str, version: int, patience: float = 0.0) -> list[str]:
        """Nothing dies alone here."""
        return []


def launch(config: RunConfig) -> Cluster:
    """Build the roles that the run trains, and the engine if it generates."""
    with ExitStack() as resources:
        sizes = world_sizes(config, device.accelerator_count())
        roles: dict[str, LocalGroup] = {}
        for role in ("actor", "critic"):
            if sizes[role]:
                roles[role] = LocalGroup(role, config)
        for group in list(roles.values())[:1]:  # they share a process group
            resources.callback(group.close)
        actor, critic = roles.get("actor"), roles.get("critic")
        if not sizes["rollout"]:
            return Cluster(actor, critic, resources.pop_all())
        engine = EmbeddedEngine(config.actor.hf_checkpoint, config.data.rollout_seed, config.actor.bf16)
        server = EmbeddedServer(engine)
        resources.callback(server.close)
        return Cluster(actor, critic, resources.pop_all(), LocalEngine(server))
