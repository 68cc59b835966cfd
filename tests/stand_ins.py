"""Stand-ins for packages that a test can't have."""

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest


class Wandb(ModuleType):
    """wandb as far as this project calls it: records what it is asked, and refuses the group `refused`."""

    class Error(Exception):
        """wandb's base class of errors."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.runs: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **run: Any) -> "Wandb":
        """Start a run, which is this module itself."""
        if run.get("group") == "refused":
            raise self.Error("no such entity:\n nobody")
        self.runs.append(run)
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log a step."""
        self.logged.append((step, metrics))

    def finish(self) -> None:
        """End the run."""
        self.finished += 1


def install_wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """Let `import wandb` find the stand-in for the length of a test."""
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module
