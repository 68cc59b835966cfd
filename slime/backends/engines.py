"""The rollout engines as the driver sees them, however they are run."""

from abc import ABC, abstractmethod


class Engines(ABC):
    """All engines of a run, each of them whole, and the one address that generate requests go to."""

    urls: list[str]
    """One an engine."""
    address: tuple[str, int]
    """Host and port of the router."""

    @abstractmethod
    def replace_dead(self, folder: str, version: int, patience: float = 0.0) -> list[str]:
        """Start another engine for each that has died, from the weights in `folder`; returns why each died, once the new ones
        serve. `patience`: seconds to wait for a death that is not known yet."""
