"""What a launcher hands to the train loop: both roles, the engines, and how to end them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from slime.backends.fsdp_utils.group import TrainGroup


@dataclass
class Cluster:
    """Everything that was started. `close` ends it all, whatever state it is in."""

    actor: TrainGroup
    critic: TrainGroup | None
    engine_urls: list[str] = field(default_factory=list)
    """One a rollout engine; none in supervised training."""
    router: tuple[str, int] | None = None
    """Host and port that generate requests go to."""
    on_close: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        """Run `on_close`, the last added first."""
        while self.on_close:
            self.on_close.pop()()
