"""Ray actors: the ranks of a role, and the rollout engines. slime/ray is the only place that imports Ray."""

import socket
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fsdp_backend.distributed.world import Rendezvous
from slime.arguments.errors import ProcessDied, UserError
from slime.arguments.parse import as_flags
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.group import TrainGroup
from slime.backends.fsdp_utils.worker import RoleName


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


class EngineProcess:
    """A process for one embedded rollout engine."""

    def serve(self, folder: str, seed: int, bf16: bool, engines: int) -> str:
        """Load the model and open the server; returns its URL."""
        from fsdp_backend import device
        from slime.backends.embedded.engine import EmbeddedEngine
        from slime.backends.embedded.server import EmbeddedServer

        device.share_cpu(engines)
        self.server = EmbeddedServer(EmbeddedEngine(folder, seed, bf16), host=ray.util.get_node_ip_address())
        return f"http://{self.server.host}:{self.server.port}"


class Running:
    """A verb running on all ranks."""

    def __init__(self, references: list[Any]) -> None:
        self.references = references

    def result(self) -> Any:
        """Rank 0's answer, once every rank is done."""
        return get_all(self.references)[0]


class RayGroup(TrainGroup):
    """The ranks of one role."""

    def __init__(self, role: RoleName, config: RunConfig, placement: list[dict[str, Any]]) -> None:
        """Starts a rank for each entry of `placement` (Ray options) and begins to load; `wait_until_built` waits for it."""
        world_size = len(placement)
        self.ranks = [ray.remote(RankProcess).options(**place).remote() for place in placement]
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
        get_all(self.built)

    def submit(self, verb: str, *args: Any) -> Running:
        """Start the verb everywhere; large arguments are stored once and mapped by every rank."""
        shared = [ray.put(argument) for argument in args]
        return Running([rank.run.remote(verb, *shared) for rank in self.ranks])

    def close(self) -> None:
        """End the processes."""
        for rank in self.ranks:
            ray.kill(rank)


class EngineGroup:
    """The rollout engines, each of them whole."""

    def __init__(self, config: RunConfig, placement: list[dict[str, Any]]) -> None:
        """Starts an engine for each entry of `placement` (Ray options); none is fine. `urls` waits for them."""
        self.engines = [ray.remote(EngineProcess).options(**place).remote() for place in placement]
        arguments = (config.actor.hf_checkpoint, config.data.rollout_seed, config.actor.bf16, len(placement))
        self.serving = [engine.serve.remote(*arguments) for engine in self.engines]

    def urls(self) -> list[str]:
        """Where they listen, once all do."""
        return get_all(self.serving)

    def close(self) -> None:
        """End the processes."""
        for engine in self.engines:
            ray.kill(engine)


def get_all(references: list[Any]) -> list[Any]:
    """Wait for all of them; the first failure raises at once. A ValueError while a process works is about the input, and a
    process that died is nobody's mistake here: one line each."""
    pending = list(references)
    try:
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            ray.get(done)
        return list(ray.get(references))
    except RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise UserError(as_flags(str(error.cause))) from error
        raise
    except RayActorError as error:
        why = next((line.strip() for line in str(error).splitlines() if "exit" in line or "died" in line), str(error))
        raise ProcessDied(f"a process of the run died: {why[:200]}") from error


def on_bundle(group: PlacementGroup, bundle: int, num_gpus: float) -> dict[str, Any]:
    """Ray options that put an actor on one bundle of a placement group."""
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
    return {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": strategy}
