"""Everything in this process, one rank a role: a breakpoint anywhere stops the whole run."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fsdp_backend.distributed.world import Rendezvous
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.server import EmbeddedServer
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
        self.worker = TrainWorker(role, config.train_config(), Rendezvous())

    @property
    def size(self) -> int:
        """One, whatever the flags say: there is one process."""
        return 1

    def submit(self, verb: str, *args: Any) -> Done:
        """Run the verb to its end."""
        return Done(getattr(self.worker, verb)(*args))

    def close(self) -> None:
        """Leave the process group."""
        self.worker.close()


def launch(config: RunConfig) -> Cluster:
    """Build the roles, and the engine unless training is supervised."""
    with ExitStack() as resources:
        actor = LocalGroup("actor", config)
        resources.callback(actor.close)
        if not config.ppo.uses_critic:
            return Cluster(actor, None, resources.pop_all())
        critic = LocalGroup("critic", config)
        engine = EmbeddedEngine(config.actor.hf_checkpoint, config.data.rollout_seed, config.actor.bf16)
        server = EmbeddedServer(engine)
        resources.callback(server.close)
        url = f"http://{server.host}:{server.port}"
        return Cluster(actor, critic, resources.pop_all(), [url], (server.host, server.port))
