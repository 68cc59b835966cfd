"""A row is one ratio with its target; the table is printed, and written as JSON and as Markdown."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HEADINGS = ("benchmark", "ours", "other", "unit", "ratio", "target")


@dataclass(frozen=True)
class Row:
    """`ours` and `other` are in `unit`, and `ratio` is the one over the other, whichever way round the target reads."""

    name: str
    ours: float
    other: float
    ratio: float
    target: str
    unit: str = "s"
    rounds: tuple[tuple[float, ...], ...] = ()
    """What was measured in every round, in seconds unless the benchmark says otherwise; for the JSON only."""

    def cells(self) -> list[str]:
        """The row as text."""
        return [self.name, f"{self.ours:.4g}", f"{self.other:.4g}", self.unit, f"{self.ratio:.3f}", self.target]


class Skipped(Exception):
    """A benchmark that can't be run here, and why."""


def fastest(rounds: Sequence[float]) -> float:
    """The round that other processes disturbed least."""
    return min(rounds)


def rounds_of(*measured: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Measurements as a row keeps them."""
    return tuple(tuple(rounds) for rounds in measured)


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table(*HEADINGS)
    for column in table.columns[1:5]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)


def write(rows: Sequence[Row], skipped: Sequence[str], facts: dict[str, Any], folder: Path) -> None:
    """Write bench.json and bench.md into `folder`: what was measured, what was not, and where."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = {"facts": facts, "rows": [asdict(row) for row in rows], "skipped": list(skipped)}
    (folder / "bench.json").write_text(json.dumps(everything, indent=2) + "\n")
    lines = ["| " + " | ".join(cells) + " |" for cells in [HEADINGS, ["---"] * len(HEADINGS), *(row.cells() for row in rows)]]
    lines += ["", *(f"- skipped: {line}" for line in skipped), *(f"- {name}: {value}" for name, value in facts.items())]
    (folder / "bench.md").write_text("\n".join(lines) + "\n")
