"""What the report draws: which metrics share a panel, and the numbers of each line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slime.observability import names
from slime.observability.timeline import LANES, Span, last_rollouts
from slime.observability.writers import ROLLOUT_KEY

Row = dict[str, float]

_PASS = "train/critic-pass_{k}/"
_COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#ca8a04", "#475569")
# Areas are drawn lighter than lines: they are large.
_AREA_COLORS = ("#60a5fa", "#fb923c", "#34d399", "#a78bfa", "#f472b6", "#22d3ee", "#facc15", "#94a3b8")
_REST_COLOR = "#e2e8f0"


@dataclass(frozen=True)
class LineSpec:
    """A declared metric to draw; its label may use the pattern's placeholders."""

    pattern: str
    label: str
    dashed: bool = False
    sparse: bool = False


@dataclass(frozen=True)
class PanelSpec:
    """A panel of lines; `floor` cuts the axis off below, for a metric without a lower bound."""

    title: str
    unit: str
    lines: tuple[LineSpec, ...]
    floor: float | None = None


@dataclass(frozen=True)
class Series:
    """One line of a panel; a NaN in `values` is a gap. In a timeline, one phase's spans."""

    label: str
    x: list[float]
    """Rollout numbers; in a timeline, the seconds at which spans begin."""
    values: list[float]
    """What is drawn there; in a timeline, how long the spans last."""
    color: str
    dashed: bool = False
    sparse: bool = False

    @property
    def known(self) -> list[float]:
        """The values that are not NaN, in order."""
        return [value for value in self.values if not math.isnan(value)]


@dataclass(frozen=True)
class Panel:
    """A panel with data: lines, bars on top of each other, or spans of time."""

    title: str
    unit: str
    series: list[Series] = field(default_factory=list)
    floor: float | None = None
    kind: Literal["lines", "stack", "timeline"] = "lines"


PANELS: tuple[PanelSpec, ...] = (
    PanelSpec(
        "Reward",
        "mean reward",
        (LineSpec("rollout/reward", "rollout"), LineSpec("eval/{dataset}/reward", "eval {dataset}", sparse=True)),
    ),
    PanelSpec(
        "Pass rate",
        "chance of a right response among k",
        (LineSpec("eval/{dataset}/pass@{n}", "{dataset} pass@{n}", sparse=True),),
    ),
    PanelSpec(
        "Explained variance",
        "fraction of the returns' variance",
        (
            LineSpec(_PASS + "explained_variance_before", "before pass {k}", dashed=True),
            LineSpec(_PASS + "explained_variance_after", "after pass {k}"),
        ),
        # An untrained critic starts far below zero, which would flatten everything after it.
        floor=-1.0,
    ),
    PanelSpec(
        "Explained variance, held out",
        "fraction of the returns' variance",
        (
            LineSpec(_PASS + "holdout_explained_variance_before", "before pass {k}", dashed=True),
            LineSpec(_PASS + "holdout_explained_variance_after", "after pass {k}"),
        ),
        floor=-1.0,
    ),
    PanelSpec("Value loss", "loss", (LineSpec(_PASS + "value_loss", "pass {k}"),)),
    PanelSpec("Supervised loss", "nats per token", (LineSpec("train/sft_loss", "cross-entropy"),)),
    PanelSpec(
        "Response length",
        "tokens",
        (
            LineSpec("rollout/response_length", "rollout"),
            LineSpec("eval/{dataset}/response_length", "eval {dataset}", sparse=True),
        ),
    ),
    PanelSpec(
        "Truncated responses",
        "fraction of responses",
        (
            LineSpec("rollout/truncated", "rollout"),
            LineSpec("eval/{dataset}/truncated", "eval {dataset}", sparse=True),
        ),
    ),
    PanelSpec(
        "KL divergence",
        "nats",
        (
            LineSpec("train/ppo_kl", "old to new policy"),
            LineSpec("train/kl_loss", "KL loss", dashed=True),
        ),
    ),
    PanelSpec("Entropy", "nats", (LineSpec("train/entropy", "policy"),)),
    PanelSpec(
        "Clipped tokens",
        "fraction of tokens",
        (LineSpec("train/pg_clipfrac", "policy"), LineSpec(_PASS + "value_clipfrac", "values, pass {k}")),
    ),
    PanelSpec(
        "Gradient norms",
        "norm before clipping",
        (LineSpec("train/grad_norm", "actor"), LineSpec(_PASS + "grad_norm", "critic, pass {k}")),
    ),
    PanelSpec("Learning rates", "rate", (LineSpec("train/lr", "actor"), LineSpec("train/critic-lr", "critic"))),
    PanelSpec(
        "Log-prob difference",
        "nats per token",
        (LineSpec("train/train_rollout_logprob_abs_diff", "rollout engine to actor"),),
    ),
    PanelSpec(
        "Staleness",
        "weight versions behind, or groups",
        (
            LineSpec("rollout/staleness", "mean of the samples"),
            LineSpec("rollout/staleness_max", "oldest sample", dashed=True),
            LineSpec("rollout/stale_groups", "groups begun anew"),
        ),
    ),
    PanelSpec(
        "Idle rollout engines",
        "seconds of a rollout",
        (LineSpec("time/engine_idle", "nothing to generate"),),
    ),
    PanelSpec(
        "Off-policy correction",
        "ratio, or fraction of tokens",
        (
            LineSpec("train/tis", "importance ratio"),
            LineSpec("train/tis_clipfrac", "ratio out of bounds"),
            LineSpec("train/opsm_clipfrac", "response left out"),
            LineSpec("train/custom_tis/{name}", "{name}"),
        ),
    ),
    PanelSpec("Throughput", "tokens per second", (LineSpec("perf/tokens_per_second", "tokens/s"),)),
)

TIME_TITLE = "Time by phase"
TIMELINE_TITLE = "Timeline of the last rollouts"
_TIMELINE_ROLLOUTS = 3


def build_panels(rows: Sequence[Row], spans: Sequence[Span] = ()) -> list[Panel]:
    """Return the panels that have data, in the order of the report."""
    panels = [Panel(spec.title, spec.unit, _lines(spec, rows), spec.floor) for spec in PANELS]
    panels.append(Panel(TIME_TITLE, "seconds per rollout, and their mean", _phases(rows), kind="stack"))
    panels.append(Panel(TIMELINE_TITLE, "seconds, and mean length of a span", _spans(spans), kind="timeline"))
    return [panel for panel in panels if panel.series]


def column(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """Return the rollouts that have the metric, and its values there."""
    having = [row for row in rows if name in row]
    return [row[ROLLOUT_KEY] for row in having], [row[name] for row in having]


def matching(rows: Sequence[Row], pattern: str) -> list[tuple[str, dict[str, str]]]:
    """Return the metrics of the rows that a pattern stands for, each with its placeholders, in natural order."""
    present = {name for row in rows for name in row}
    found = [(name, named) for name in present if (named := names.match(pattern, name)) is not None]
    return sorted(found, key=lambda each: (int(each[1].get("k", 0)), each[0]))


def _lines(spec: PanelSpec, rows: Sequence[Row]) -> list[Series]:
    series: list[Series] = []
    pass_colors: dict[str, str] = {}
    for line in spec.lines:
        for name, named in matching(rows, line.pattern):
            rollouts, values = column(rows, name)
            color = _COLORS[len(series) % len(_COLORS)]
            # A pass keeps its colour, so that its lines before and after read as a pair.
            color = pass_colors.setdefault(named["k"], color) if "k" in named else color
            label = line.label.format_map(named)
            drawn = Series(label, rollouts, values, color, line.dashed, line.sparse)
            if drawn.known:
                series.append(drawn)
    return series


def _phases(rows: Sequence[Row]) -> list[Series]:
    """Return the seconds of each phase in each rollout, and what the whole leaves over. The critic's update runs beside the
    others, and is on the timeline instead."""
    rollouts = [row[ROLLOUT_KEY] for row in rows]
    series: list[Series] = []
    rest = [_seconds(row, f"time/{names.WHOLE_PHASE}") for row in rows]
    for phase in names.PHASES:
        values = [_seconds(row, f"time/{phase}") for row in rows]
        if phase in (names.WHOLE_PHASE, names.CONCURRENT_PHASE) or not any(values):
            continue
        series.append(Series(phase.replace("_", " "), rollouts, values, _AREA_COLORS[len(series) % len(_AREA_COLORS)]))
        rest = [max(0.0, left - value) for left, value in zip(rest, values, strict=True)]
    if any(rest):
        series.append(Series("everything else", rollouts, rest, _REST_COLOR))
    return series


def _spans(spans: Sequence[Span]) -> list[Series]:
    """Return each phase that is somebody's work, in the last few rollouts; time 0 is where they begin."""
    shown = last_rollouts(spans, _TIMELINE_ROLLOUTS)
    series: list[Series] = []
    for phase in (phase for lane in LANES.values() for phase in lane):
        of_phase = [span for span in shown if span.phase == phase]
        if of_phase:
            begins = [span.started - shown[0].started for span in of_phase]
            lengths = [span.ended - span.started for span in of_phase]
            series.append(Series(phase.replace("_", " "), begins, lengths, _AREA_COLORS[len(series) % len(_AREA_COLORS)]))
    return series


def _seconds(row: Row, name: str) -> float:
    value = row.get(name, 0.0)
    return 0.0 if math.isnan(value) else value
