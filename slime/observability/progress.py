"""What `slime train` shows while it runs: a live display on a terminal, one line per rollout elsewhere."""

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from slime.observability.formatting import format_seconds
from slime.observability.names import match

_REFRESH_PER_SECOND = 4


def summary_line(
    rollout_id: int,
    num_rollout: int,
    metrics: Mapping[str, float],
    seconds_left: float | None,
    seconds_elapsed: float | None = None,
) -> str:
    """Put one rollout into one line; a metric that is not there is left out."""
    parts = [f"rollout {rollout_id + 1}/{num_rollout}", *_reward_parts(metrics), *_critic_parts(metrics)]
    if "train/sft_loss" in metrics:
        parts.append(f"sft loss {metrics['train/sft_loss']:.4g}")
    if "perf/tokens_per_second" in metrics:
        parts.append(f"{metrics['perf/tokens_per_second']:,.0f} tokens/s")
    skipped = metrics.get("train/skipped_steps", 0) + metrics.get("train/critic-skipped_steps", 0)
    if skipped:
        parts.append(f"SKIPPED STEPS {skipped:.0f}")
    if seconds_elapsed is not None:
        parts.append(f"elapsed {format_seconds(seconds_elapsed)}")
    if seconds_left is not None:
        parts.append(f"left {format_seconds(seconds_left)}")
    return " | ".join(parts)


def _reward_parts(metrics: Mapping[str, float]) -> list[str]:
    parts = [f"reward {metrics['rollout/reward']:.3f}"] if "rollout/reward" in metrics else []
    for name, value in metrics.items():
        found = match("eval/{dataset}/reward", name)
        if found:
            parts.append(f"eval {found['dataset']} {value:.3f}")
    return parts


def _critic_parts(metrics: Mapping[str, float]) -> list[str]:
    parts = []
    before = _by_pass(metrics, "explained_variance_before")
    after = _by_pass(metrics, "explained_variance_after")
    if before and after:
        first, last = ("n/a" if math.isnan(value) else f"{value:.2f}" for value in (before[0], after[-1]))
        why = " (n/a: the returns measured do not vary)" if "n/a" in (first, last) else ""
        parts.append(f"explained variance {first} -> {last}{why}")
    losses = _by_pass(metrics, "value_loss")
    if losses:
        parts.append("value loss " + " -> ".join(f"{loss:.3g}" for loss in losses))
    return parts


def _by_pass(metrics: Mapping[str, float], what: str) -> list[float]:
    values: list[float] = []
    while (name := f"train/critic-pass_{len(values) + 1}/{what}") in metrics:
        values.append(metrics[name])
    return values


class Progress:
    """Shows how far a run is; enter it before the first rollout and call `update` after each one."""

    def __init__(
        self,
        num_rollout: int,
        critic_passes: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_rollout = num_rollout
        self._critic_passes = critic_passes
        self._console = console or Console()
        self._clock = clock
        self._started = clock()
        self._finished_at: list[float] = []
        self._rollout_id: int | None = None
        self._metrics: Mapping[str, float] = {}
        self._phase = "starting"
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._started = self._clock()
        if self._console.is_interactive:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=_REFRESH_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live:
            self._phase = "stopped" if kind else "done"
            self._live.stop()
            self._live = None

    def update(self, rollout_id: int, metrics: Mapping[str, float]) -> None:
        """Show a finished rollout."""
        self._rollout_id = rollout_id
        self._metrics = dict(metrics)
        self._finished_at.append(self._clock())
        if self._live:
            self._live.refresh()
        else:
            self.print(self._summary())

    def print(self, text: str) -> None:
        """Print a message, above the live display where there is one."""
        # The text is not markup, and a log's line must not be wrapped at a guessed width.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        """Show what is happening now; on a terminal only."""
        self._phase = name.replace("_", " ")
        if name == "critic_update" and self._critic_passes > 1:
            self._phase += f" ({self._critic_passes} passes)"

    def _summary(self) -> str:
        if self._rollout_id is None:
            first = f"rollout 0/{self._num_rollout} | " if self._num_rollout else ""  # an evaluation alone has none
            return f"{first}elapsed {format_seconds(self._elapsed())}"
        return summary_line(self._rollout_id, self._num_rollout, self._metrics, self._seconds_left(), self._elapsed())

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _seconds_left(self) -> float | None:
        if self._rollout_id is None:
            return None
        remaining = self._num_rollout - self._rollout_id - 1
        finished = self._finished_at
        # The first rollout also pays for warming up: it counts only while there is no other.
        per_rollout = (finished[-1] - finished[0]) / (len(finished) - 1) if len(finished) > 1 else finished[0] - self._started
        since_last = self._clock() - finished[-1]
        return max(0.0, remaining * per_rollout - since_last)

    def _render(self) -> RenderableType:
        done = 0 if self._rollout_id is None else self._rollout_id + 1
        self._spinner.update(text=Text(self._phase, style="cyan"))
        running = done < max(1, self._num_rollout) and self._phase not in ("done", "stopped")
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=max(1, self._num_rollout), completed=done, width=32),
            self._spinner if running else Text(self._phase, style="bold"),
        )
        return Group(head, Text(self._summary(), overflow="fold"))
