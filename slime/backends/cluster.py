"""What a launcher hands to the train loop: both roles, the engines, and how to end them; and how many processes each has."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.group import TrainGroup

# slime's default, where there are GPUs.
_GPUS_PER_NODE = 8


@dataclass
class Cluster:
    """Everything that was started. `close` ends it all, the last started first."""

    actor: TrainGroup
    critic: TrainGroup | None
    resources: ExitStack
    """What `close` ends."""
    engine_urls: list[str] = field(default_factory=list)
    """One a rollout engine; none in supervised training."""
    router: tuple[str, int] | None = None
    """Host and port that generate requests go to."""

    def describe(self) -> str:
        """Who runs, in a line."""
        parts = [f"actor {self.actor.size} ranks"]
        if self.critic is not None:
            parts += [f"critic {self.critic.size} ranks", f"rollout {len(self.engine_urls)} engines"]
        return ", ".join(parts)

    def close(self) -> None:
        """End every process, server and thread that the launcher started."""
        self.resources.close()


def world_sizes(config: RunConfig, gpus: int) -> dict[str, int]:
    """Processes of each role. `gpus` of this machine tells whether slime's default of 8 a node applies, or 1 on a CPU."""
    if config.run.launcher == "local":
        return {"actor": 1, "critic": int(config.ppo.uses_critic), "rollout": int(config.ppo.uses_critic)}
    cluster = config.cluster
    per_node = cluster.actor_num_gpus_per_node or (_GPUS_PER_NODE if gpus else 1)
    actor = cluster.actor_num_nodes * per_node
    critic = (cluster.critic_num_nodes or cluster.actor_num_nodes) * (cluster.critic_num_gpus_per_node or per_node)
    if not config.ppo.uses_critic:
        return {"actor": actor, "critic": 0, "rollout": 0}
    return {"actor": actor, "critic": critic, "rollout": cluster.rollout_num_gpus or 1}
