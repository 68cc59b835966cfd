"""What a launcher hands to the train loop: both roles, the engines, and how to end them."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from slime.backends.fsdp_utils.group import TrainGroup


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
