"""A run's folder and a run's display, behind one door: what the train loop reports goes here and nowhere else."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from slime.observability.progress import Progress
from slime.observability.timeline import Span, TimelineWriter
from slime.observability.timers import PhaseTimer
from slime.observability.writers import JsonlWriter, TensorBoardWriter, Writer, keep_before

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.yaml"
TIMELINE_FILE = "timeline.jsonl"


class RunLog:
    """Writes config.yaml, metrics.jsonl, timeline.jsonl and TensorBoard events, shows the live line, and on leaving, however
    that comes about, draws report.html."""

    def __init__(
        self, run_dir: Path, flags: Mapping[str, Any], num_rollout: int, critic_passes: int, first_rollout: int | None = None
    ) -> None:
        """Makes the folder. Raises ValueError if it holds a run with rollouts already: nothing is overwritten. A run that goes
        on, with `first_rollout`, drops what its folder holds of that rollout and later ones, which it does again."""
        metrics = run_dir / METRICS_FILE
        if first_rollout is not None:
            keep_before(metrics, first_rollout)
        elif metrics.exists() and metrics.stat().st_size:
            raise ValueError(f"{run_dir} holds a run already: choose another folder, or move that one away")
        run_dir.mkdir(parents=True, exist_ok=True)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()}
        (run_dir / CONFIG_FILE).write_text(yaml.safe_dump(plain, sort_keys=False))
        self.run_dir = run_dir
        self.progress = Progress(num_rollout, critic_passes)
        self._timer = PhaseTimer()
        self._writers: list[Writer] = [JsonlWriter(metrics), TensorBoardWriter(run_dir / "tensorboard", first_rollout)]
        self._timeline = TimelineWriter(run_dir / TIMELINE_FILE)
        self._began = time.time()
        self._written_at = 0.0

    def add_writer(self, writer: Writer) -> None:
        """Let one more writer have every rollout's metrics; it is closed with the others."""
        self._writers.append(writer)

    def __enter__(self) -> Self:
        self._written_at = time.perf_counter()
        self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.progress.__exit__(kind, error, traceback)
        for writer in self._writers:
            writer.close()
        self._timeline.close()
        if (self.run_dir / METRICS_FILE).stat().st_size:
            # Imported on use: matplotlib takes a second.
            from slime.observability.report import write_report

            self.progress.print(f"report: {write_report(self.run_dir)}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show and time what is happening now."""
        self.progress.phase(name)
        started = time.time()
        try:
            with self._timer.phase(name):
                yield
        finally:
            self.add_span(name, started, time.time())

    def add_span(self, phase: str, started: float, ended: float) -> None:
        """Put on the timeline what was measured elsewhere, in seconds since the epoch."""
        self._timeline.write(Span(phase, started - self._began, ended - self._began))

    def take_times(self) -> dict[str, float]:
        """Seconds of each phase since they were last taken, as metrics."""
        return self._timer.take()

    def write(self, rollout_id: int, metrics: Mapping[str, float], tokens: int) -> None:
        """Record a rollout, with the time since the one before and the tokens per second that this makes."""
        now = time.perf_counter()
        seconds, self._written_at = now - self._written_at, now
        whole = {**metrics, "time/rollout": seconds, "perf/tokens_per_second": tokens / seconds}
        for writer in self._writers:
            writer.write(rollout_id, whole)
        self.progress.update(rollout_id, whole)

    def write_final_evaluation(self, metrics: Mapping[str, float], rollouts: int) -> None:
        """Record an evaluation made after so many rollouts, the last: it stands where the next rollout would."""
        for writer in self._writers:
            writer.write(rollouts, metrics)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if name.endswith("/reward"))
        self.progress.print(f"after {rollouts} rollouts: {shown}")
