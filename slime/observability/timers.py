"""Wall time of a rollout's phases."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slime.observability import names


class PhaseTimer:
    """Adds up the wall seconds spent in each phase until they are taken."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as part of the phase `name`, also when it raises."""
        names.check(_metric(name))
        started = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - started)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds measured elsewhere, for example in another process."""
        metric = _metric(phase)
        names.check(metric)
        self._seconds[metric] = self._seconds.get(metric, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase as metrics (time/<phase>) and start again from nothing."""
        taken, self._seconds = self._seconds, {}
        return taken


def _metric(phase: str) -> str:
    return f"time/{phase}"
