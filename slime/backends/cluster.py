"""What a launcher hands to the train loop: both roles, the engines, and how to end them; and how many processes each has."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from slime.arguments.run_config import RunConfig
from slime.backends.engines import Engines
from slime.backends.fsdp_utils.group import TrainGroup

# slime's default, where there are GPUs.
_GPUS_PER_NODE = 8


@dataclass
class Cluster:
    """Everything that was started. `close` ends it all, the last started first."""

    actor: TrainGroup | None
    """None in a run that trains the critic alone and asks the policy for nothing."""
    critic: TrainGroup | None
    resources: ExitStack
    """What `close` ends."""
    engines: Engines | None = None
    """None where nothing is generated."""
    check: Callable[[], None] | None = None
    """Raises ProcessDied if a rank has died; None where all is one process."""

    def roles(self) -> dict[str, TrainGroup]:
        """The roles that this run has, by name."""
        return {name: group for name, group in (("actor", self.actor), ("critic", self.critic)) if group is not None}

    def describe(self) -> str:
        """Who runs, in a line."""
        parts = [f"{name} {group.size} ranks" for name, group in self.roles().items()]
        return ", ".join(parts if self.engines is None else [*parts, f"rollout {len(self.engines.urls)} engines"])

    def close(self) -> None:
        """End every process, server and thread that the launcher started."""
        self.resources.close()


def world_sizes(config: RunConfig, gpus: int) -> dict[str, int]:
    """Ranks of each role, and rollout engines to start. `gpus` of this machine tells whether slime's default of 8 ranks a node
    applies, or 1 on a CPU."""
    cluster, ppo = config.cluster, config.ppo
    per_node = cluster.actor_num_gpus_per_node or (_GPUS_PER_NODE if gpus else 1)
    sizes = {
        "actor": cluster.actor_num_nodes * per_node,
        "critic": (cluster.critic_num_nodes or cluster.actor_num_nodes) * (cluster.critic_num_gpus_per_node or per_node),
        "rollout": (cluster.rollout_num_gpus or config.engine_gpus) // config.engine_gpus,
    }
    if config.run.launcher == "local":
        sizes = dict.fromkeys(sizes, 1)
    needed = {
        "actor": config.has_actor_updates or (config.has_critic_updates and ppo.kl_coef != 0),
        "critic": config.has_critic_updates,
        "rollout": config.generates_responses and config.engine.rollout_external_engine_addrs is None,
    }
    return {role: size if needed[role] else 0 for role, size in sizes.items()}
