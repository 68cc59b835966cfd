"""Where a rollout's metrics go: a JSON Lines file, TensorBoard event files, and Weights & Biases if asked for."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from slime.observability import names

ROLLOUT_KEY = "rollout"


class Writer(Protocol):
    """Takes the metrics of a rollout after the other."""

    def write(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Record one rollout's metrics. Raises ValueError for a name that names.py does not declare."""

    def close(self) -> None:
        """Nothing comes any more."""


class JsonlWriter:
    """Appends one JSON object for each rollout, so that a stopped run's file goes on where it ended."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend_last_line(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Append one rollout's metrics; a number JSON cannot hold (NaN, infinity) becomes null."""
        record: dict[str, float | None] = {ROLLOUT_KEY: rollout_id}
        for name, value in metrics.items():
            names.check(name)
            number = float(value)
            record[name] = number if math.isfinite(number) else None
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()


class TensorBoardWriter:
    """Writes each metric as a TensorBoard scalar, the rollout's number being the step."""

    def __init__(self, directory: Path, first_rollout: int | None = None) -> None:
        # Imported here because it loads torch, which readers of metrics do not need.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=first_rollout)

    def write(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Add one rollout's scalars and flush them, so that an open TensorBoard shows them at once."""
        for name in metrics:
            names.check(name)
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), rollout_id)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbWriter:
    """Sends each rollout's metrics to a Weights & Biases run, the rollout's number being the step."""

    def __init__(self, config: Mapping[str, Any], **run: Any) -> None:
        """Starts the run: `config` is shown beside it, `run` goes to wandb.init, which finds its key in the environment.
        Raises ValueError where wandb can't start one."""
        # Imported here because it is optional, and takes a second.
        import wandb

        try:
            self._run = wandb.init(config=dict(config), **run)
        except wandb.Error as error:
            raise ValueError(f"Weights & Biases: {' '.join(str(error).split())}") from error

    def write(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Log one rollout's metrics."""
        for name in metrics:
            names.check(name)
        self._run.log({name: float(value) for name, value in metrics.items()}, step=rollout_id)

    def close(self) -> None:
        """Finish the run; waits until all of it is sent."""
        self._run.finish()


def keep_before(path: Path, rollout_id: int) -> None:
    """Drop the lines of this rollout and later ones, if there is a file."""
    if not path.exists():
        return
    _mend_last_line(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)[ROLLOUT_KEY] < rollout_id]
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    partial.replace(path)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a JsonlWriter's file (null becomes NaN); raise a one-line ValueError at the first broken line."""
    with path.open("rb") as file:
        return [_parse(line, f"{path}, line {number}") for number, line in enumerate(file, start=1) if line.strip()]


def _parse(line: bytes, place: str) -> dict[str, float]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict) or type(record.get(ROLLOUT_KEY)) is not int:
        raise ValueError(f"{place}: not an object with a whole number as its {ROLLOUT_KEY!r}")
    return {name: _number(name, value, place) for name, value in record.items()}


def _number(name: str, value: object, place: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{place}: {name!r} is {value!r}, not a number or null")
    return value


def _mend_last_line(path: Path) -> None:
    """Drop a last line that a killed run left half written; the next line would be glued to it otherwise."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
