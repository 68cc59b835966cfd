"""Everything in this process, one rank a role: a breakpoint anywhere stops the whole run."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_backend import device
from fsdp_backend.distributed.world import Rendezvous
from slime.arguments.errors import UserError
from slime.arguments.parse import as_flags
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster, world_sizes
from slime.backends.engines import Engines, EngineServer, EngineStart
from slime.backends.external import ExternalEngines
from slime.backends.fsdp_utils.group import TrainGroup
from slime.backends.fsdp_utils.worker import RoleName, TrainWorker
from slime.backends.start_engine import start_engine


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
    """The one engine, in this process or, if it is SGLang, watched by nobody but it."""

    def __init__(self, server: EngineServer) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self.address = host, int(port)
        self.urls = [server.url]

    def replace_dead(self, folder: Callable[[], str], version: int, patience: float = 0.0) -> list[str]:
        """Nothing is replaced under a debugger."""
        return []


def launch(config: RunConfig, logs: Path) -> Cluster:
    """Build the roles that the run trains, and the engine if it generates. `logs`: folder for what engines print."""
    with ExitStack() as resources:
        sizes = world_sizes(config, device.accelerator_count())
        roles: dict[str, LocalGroup] = {}
        for role in ("actor", "critic"):
            if sizes[role]:
                roles[role] = LocalGroup(role, config)
        for group in list(roles.values())[:1]:  # they share a process group
            resources.callback(group.close)
        engines: Engines | None = None
        if sizes["rollout"]:
            start = EngineStart(0, config.actor.hf_checkpoint, 0, "127.0.0.1", logs / "engine_0.log")
            server = start_engine(config, start, 1)
            resources.callback(server.close)
            engines = LocalEngine(server)
        elif config.generates_responses:
            engines = ExternalEngines(config)
            resources.callback(engines.close)
        return Cluster(roles.get("actor"), roles.get("critic"), resources.pop_all(), engines)
