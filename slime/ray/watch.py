"""Waiting for processes, with an eye on those that nobody waits for: a rank that dies ends the wait, whatever it was for."""

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from slime.arguments.errors import ProcessDied, UserError
from slime.arguments.parse import as_flags


class Watch:
    """The processes that a run can't do without."""

    def __init__(self) -> None:
        self._lives: dict[Any, str] = {}

    def add(self, name: str, process: Any) -> None:
        """`process` is an actor with a method `live`, which returns when it dies and not before."""
        self._lives[process.live.remote()] = name

    def check(self) -> None:
        """Raises ProcessDied if one has died."""
        if self._lives:
            self._raise_dead(ray.wait(list(self._lives), num_returns=1, timeout=0)[0])

    def get_all(self, references: list[Any]) -> list[Any]:
        """Wait for all of them; the first failure raises at once. A ValueError while a process works is about the input, and a
        process that died is nobody's mistake here: one line each."""
        pending = list(references)
        try:
            while pending:
                done, _ = ray.wait([*pending, *self._lives], num_returns=1)
                # An answer that is there counts, even if the process is gone by now.
                if done[0] in self._lives:
                    self._raise_dead(done)
                ray.get(done)
                pending.remove(done[0])
            return list(ray.get(references))
        except RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise UserError(as_flags(str(error.cause))) from error
            raise
        except RayActorError as error:
            raise ProcessDied(f"a process of the run died: {why(error)}") from error

    def _raise_dead(self, lives: list[Any]) -> None:
        for life in lives:
            try:
                ray.get(life)
            except RayActorError as error:
                raise ProcessDied(f"{self._lives[life]} died: {why(error)}") from error


def why(error: RayActorError) -> str:
    """Of Ray's account of a death, the line that says why."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "exit" in line or "died" in line), str(error))[:200]
