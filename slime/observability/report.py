"""A run's report: one HTML file that opens from disk, made from the run's metrics and configuration."""

import os
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FuncFormatter, MaxNLocator, NullFormatter

from slime.observability.key_numbers import key_numbers
from slime.observability.page import render_page
from slime.observability.panels import Panel, Row, build_panels
from slime.observability.timeline import LANES, read_timeline
from slime.observability.writers import ROLLOUT_KEY, read_metrics

_INK = "#64748b"
_AXIS = "#cbd5e1"
_GRID = "#e8edf3"
_HEIGHT, _WIDTH, _FULL_WIDTH = 2.75, 6.2, 12.9
# Text is laid out with the font that matplotlib ships; the page's fonts are no wider.
_LAYOUT_FONT = "DejaVu Sans"
_PAGE_FONTS = b"Inter, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Beyond so many points a dot on each would hide the line, and a thick line would hide itself.
_MAX_DOTS = 40
_MAX_THICK = 200
_LOG_SCALE_FROM = 100.0


def write_report(run_dir: Path) -> Path:
    """Write run_dir/report.html from its metrics.jsonl and config.yaml; raise ValueError where there is nothing yet."""
    rows = _read_rows(run_dir / "metrics.jsonl")
    config_path = run_dir / "config.yaml"
    config = config_path.read_text(encoding="utf-8", errors="replace") if config_path.exists() else ""
    panels = build_panels(rows, read_timeline(run_dir / "timeline.jsonl"))
    span = (rows[0][ROLLOUT_KEY], rows[-1][ROLLOUT_KEY])
    # With an odd number of panels, the page gives the last one a row of its own.
    last_width = _FULL_WIDTH if len(panels) % 2 else _WIDTH
    figures = [(panel, draw(panel, span, last_width if panel is panels[-1] else _WIDTH)) for panel in panels]
    report = run_dir / "report.html"
    _replace(report, render_page(run_dir.resolve().name, key_numbers(rows), figures, config))
    return report


def draw(panel: Panel, span: tuple[float, float], width: float = _WIDTH) -> bytes:
    """Draw a panel as an SVG image whose horizontal axis goes from the span's first rollout to its last."""
    # A fixed salt makes equal runs give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "slime", "font.family": _LAYOUT_FONT}):
        figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        _style(axes, span)
        if panel.kind == "stack":
            _draw_stack(axes, panel)
        elif panel.kind == "timeline":
            _draw_timeline(axes, panel)
        else:
            _draw_lines(axes, panel)
        image = BytesIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(image, format="svg", transparent=True, metadata=no_metadata)
    return image.getvalue().replace(f"'{_LAYOUT_FONT}'".encode(), _PAGE_FONTS)


def _read_rows(path: Path) -> list[Row]:
    rows = read_metrics(path) if path.exists() else []
    if not rows:
        raise ValueError(f"{path}: no metrics yet, so there is nothing to report")
    # A resumed run does some rollouts again: what it wrote last is what its weights have seen.
    latest = {row[ROLLOUT_KEY]: row for row in rows}
    return [latest[rollout] for rollout in sorted(latest)]


def _replace(path: Path, text: str) -> None:
    # Whoever opens the report while the run goes on must never read half a file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _style(axes: Axes, span: tuple[float, float]) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_AXIS)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("rollout", color=_INK, fontsize=9.5)
    margin = max(0.5, 0.015 * (span[1] - span[0]))
    axes.set_xlim(span[0] - margin, span[1] + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    _style_ticks(axes)


def _style_ticks(axes: Axes) -> None:
    axes.tick_params(which="both", length=0, pad=5, colors=_INK, labelsize=9.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_lines(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        axes.plot(
            series.x,
            series.values,
            color=series.color,
            linewidth=1.7 if len(series.values) <= _MAX_THICK else 1.1,
            linestyle=(0, (4, 2)) if series.dashed else "-",
            marker="o" if series.sparse or len(series.values) <= _MAX_DOTS else "",
            markersize=4 if series.sparse else 3,
        )
    known = [value for series in panel.series for value in series.known]
    lowest, highest = min(known), max(known)
    if panel.floor is not None and lowest < panel.floor < highest:
        axes.set_ylim(bottom=panel.floor, top=max(1.0, highest))
        axes.set_xlabel(f"rollout (values below {panel.floor:g} are cut off)", color=_INK)
    elif lowest > 0 and highest / lowest > _LOG_SCALE_FROM:
        axes.set_yscale("log")
        # A new scale brings tick labels of its own.
        _style_ticks(axes)


def _draw_stack(axes: Axes, panel: Panel) -> None:
    rollouts = panel.series[0].x
    edges = [rollout - 0.5 for rollout in rollouts] + [rollouts[-1] + 0.5]
    base = [0.0] * len(rollouts)
    for series in panel.series:
        top = [low + value for low, value in zip(base, series.values, strict=True)]
        axes.stairs(top, edges, baseline=base, fill=True, color=series.color, linewidth=0)
        base = top
    axes.set_ylim(bottom=0)


def _draw_timeline(axes: Axes, panel: Panel) -> None:
    """A row for each who works, the first on top."""
    lanes = list(LANES)[::-1]
    for series in panel.series:
        row = next(lanes.index(lane) for lane, phases in LANES.items() if series.label.replace(" ", "_") in phases)
        spans = list(zip(series.x, series.values, strict=True))
        axes.broken_barh(spans, (row - 0.36, 0.72), color=series.color, linewidth=0)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.set_xlim(
        0, max(begin + length for series in panel.series for begin, length in zip(series.x, series.values, strict=True))
    )
    axes.set_xlabel("seconds", color=_INK, fontsize=9.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axes.yaxis.set_major_formatter(FixedFormatter(lanes))
