"""The rollout engines as the driver sees them, however they are run."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class EngineServer(ABC):
    """One engine that listens."""

    url: str

    @abstractmethod
    def wait(self) -> str:
        """Returns once it has ended by itself, or was closed; says why, as far as that is known."""

    @abstractmethod
    def close(self) -> None:
        """End it."""


@dataclass(frozen=True)
class EngineStart:
    """What distinguishes one start of an engine from others."""

    place: int
    """Which of the run's engines it is."""
    folder: str
    """With the weights."""
    version: int
    """Of these weights."""
    host: str
    """To listen at."""
    log: Path
    """For what it prints, if it is a program of its own."""


class Engines(ABC):
    """All engines of a run, each of them whole, and the one address that generate requests go to."""

    urls: list[str]
    """One an engine."""
    address: tuple[str, int]
    """Host and port of the router."""

    @abstractmethod
    def replace_dead(self, folder: Callable[[], str], version: int, patience: float = 0.0) -> list[str]:
        """Start another engine for each that has died, from the weights in `folder`, which is asked for only then; returns why
        each died, once the new ones serve. `patience`: seconds to wait for a death that is not known yet."""
