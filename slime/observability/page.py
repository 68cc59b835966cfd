"""The report's HTML page, self-contained: its style, its key numbers and its panels."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from slime.observability.formatting import format_number
from slime.observability.panels import Panel, Series

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: #0f172a; line-height: 1.45;
  font-family: Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 26px; line-height: 1.2; letter-spacing: -0.02em; margin: 0; overflow-wrap: anywhere; }
.kind { color: #64748b; font-size: 14px; margin: 4px 0 24px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 0 0 20px; }
.card, figure, details { background: #fff; border: 1px solid #e2e8f0; border-radius: 12px; }
.card { padding: 14px 18px; }
.card dt { color: #64748b; font-size: 13px; overflow-wrap: anywhere; }
.card dd { margin: 2px 0 0; font-size: 21px; font-weight: 600; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; }
.card small { display: block; color: #64748b; font-size: 12.5px; font-weight: 400; letter-spacing: 0; }
.bad { background: #fef2f2; border-color: #fca5a5; }
.bad dt, .bad dd, .bad small { color: #b91c1c; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px; }
/* With an odd number of panels the last one takes the whole row; its image is drawn to fit. */
figure:last-child:nth-child(odd) { grid-column: 1 / -1; }
@media (max-width: 860px) { .grid { grid-template-columns: minmax(0, 1fr); } }
figure { margin: 0; padding: 18px 20px 12px; display: flex; flex-direction: column; }
h2 { font-size: 16px; font-weight: 600; margin: 0; }
h2 span { color: #64748b; font-size: 13px; font-weight: 400; margin-left: 6px; }
figure img { display: block; width: 100%; height: auto; margin-top: auto; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 3px 18px; margin: 8px 0 10px; padding: 0;
  color: #475569; font-size: 13px; }
.legend li { display: inline-flex; align-items: center; gap: 7px; overflow-wrap: anywhere; }
.legend b { color: #0f172a; font-weight: 600; font-variant-numeric: tabular-nums; }
.legend i { flex: none; width: 16px; border-top: 3px solid; }
.legend i.dashed { border-top-style: dashed; }
.legend i.block { width: 11px; height: 11px; border: 0; border-radius: 3px; }
details { margin-top: 20px; padding: 14px 20px; }
summary { cursor: pointer; font-weight: 600; }
pre { font: 12.5px/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 12px 0 2px; columns: 380px; column-gap: 36px; }
@media print { body { background: #fff; } figure, .card { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Card:
    """A key number at the top of the page."""

    label: str
    value: str
    note: str = ""
    bad: bool = False


def render_page(title: str, cards: Sequence[Card], figures: Sequence[tuple[Panel, bytes]], config: str) -> str:
    """Return the whole page; `figures` are the panels with their SVG images."""
    name = escape(title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} - training report</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="kind">Training report. The number after a line's name is its latest value.</p>
<dl class="cards">
{"".join(_card(card) for card in cards)}</dl>
<div class="grid">
{"".join(_figure(panel, image) for panel, image in figures)}</div>
{_config(config)}</main>
</body>
</html>
"""


def _card(card: Card) -> str:
    note = f"<small>{escape(card.note)}</small>" if card.note else ""
    bad = " bad" if card.bad else ""
    return f'<div class="card{bad}"><dt>{escape(card.label)}</dt><dd>{escape(card.value)}{note}</dd></div>\n'


def _figure(panel: Panel, image: bytes) -> str:
    # An image of its own keeps the ids of one SVG from meeting those of another.
    source = "data:image/svg+xml;base64," + base64.b64encode(image).decode("ascii")
    legend = "".join(_legend_entry(series, panel.kind != "lines") for series in panel.series)
    return (
        f"<figure>\n<h2>{escape(panel.title)}<span>{escape(panel.unit)}</span></h2>\n"
        f'<ul class="legend">{legend}</ul>\n<img alt="{escape(_alt_text(panel))}" src="{source}">\n</figure>\n'
    )


def _legend_entry(series: Series, block: bool) -> str:
    if block:
        swatch = f'<i class="block" style="background:{series.color}"></i>'
    else:
        kind = ' class="dashed"' if series.dashed else ""
        swatch = f'<i{kind} style="border-color:{series.color}"></i>'
    number = fmean(series.values) if block else series.known[-1]
    return f"<li>{swatch}{escape(series.label)} <b>{format_number(number)}</b></li>"


def _alt_text(panel: Panel) -> str:
    changes = (
        f"{series.label} from {format_number(series.known[0])} to {format_number(series.known[-1])}" for series in panel.series
    )
    return f"{panel.title} ({panel.unit}) by rollout: {'; '.join(changes)}"


def _config(config: str) -> str:
    if not config:
        return ""
    return f"<details>\n<summary>Configuration</summary>\n<pre>{escape(config)}</pre>\n</details>\n"
