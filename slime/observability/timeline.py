"""When each phase of a run began and ended: a JSON Lines file, one span a line."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slime.observability import names

LANES = {
    "rollouts": ("generate", "evaluate"),
    "critic": ("values", "critic_update"),
    "actor": ("log_probs", "actor_update", "update_weights", "save"),
}
"""Whose work a phase is. Waiting is no work."""


@dataclass(frozen=True)
class Span:
    """One stretch of work, in seconds since the run began."""

    phase: str
    started: float
    ended: float


class TimelineWriter:
    """Writes spans as they end; what an earlier start left is gone, with its own beginning of time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, span: Span) -> None:
        """Append one; raises ValueError for a phase that is not declared."""
        names.check(f"time/{span.phase}")
        self._file.write(json.dumps(asdict(span)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_timeline(path: Path) -> list[Span]:
    """The spans of a run so far; a last line that is not whole is left out. Raises ValueError for a broken file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    try:
        return [Span(**json.loads(line)) for line in lines if line.endswith("\n")]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def last_rollouts(spans: Sequence[Span], count: int) -> list[Span]:
    """The spans from the beginning of the last `count` generations on, in order, cut off at that beginning."""
    begins = sorted(span.started for span in spans if span.phase == "generate")
    if not begins:
        return []
    begin = begins[-count:][0]
    kept = (Span(span.phase, max(span.started, begin), span.ended) for span in spans if span.ended > begin)
    return sorted(kept, key=lambda span: span.started)
