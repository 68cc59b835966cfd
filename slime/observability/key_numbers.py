"""The key numbers at the top of the report."""

import math
from collections.abc import Sequence

from slime.observability.formatting import format_number, format_seconds
from slime.observability.names import PHASES, WHOLE_PHASE
from slime.observability.page import Card
from slime.observability.panels import Row, column, matching
from slime.observability.writers import ROLLOUT_KEY

_SKIPPED = ("train/skipped_steps", "train/critic-skipped_steps")


def key_numbers(rows: Sequence[Row]) -> list[Card]:
    """Return the cards whose numbers the run has."""
    numbers = f"numbers {rows[0][ROLLOUT_KEY]:.0f} to {rows[-1][ROLLOUT_KEY]:.0f}"
    cards = [Card("Rollouts", format_number(len(rows)), numbers)]
    rewards = [(f"Eval reward, {named['dataset']}", name) for name, named in matching(rows, "eval/{dataset}/reward")]
    cards += [_change(rows, label, name) for label, name in rewards or [("Rollout reward", "rollout/reward")]]
    passes = matching(rows, "train/critic-pass_{k}/explained_variance_after")
    if passes:
        cards.append(_change(rows, "Explained variance", passes[-1][0]))
    cards.append(_change(rows, "Supervised loss", "train/sft_loss"))
    cards.append(_total_time(rows))
    cards.append(_skipped(rows))
    return [card for card in cards if card.value]


def _change(rows: Sequence[Row], label: str, name: str) -> Card:
    """Return the metric's first and last known value; an empty card where there is none."""
    known = [value for value in column(rows, name)[1] if not math.isnan(value)]
    if not known:
        return Card(label, "")
    if len(rows) == 1:
        return Card(label, f"{known[0]:.2f}")
    return Card(label, f"{known[0]:.2f} \N{RIGHTWARDS ARROW} {known[-1]:.2f}", "first and last")


def _total_time(rows: Sequence[Row]) -> Card:
    whole = _total(rows, f"time/{WHOLE_PHASE}")
    seconds = whole or sum(_total(rows, f"time/{phase}") for phase in PHASES)
    if not seconds:
        return Card("Total time", "")
    return Card("Total time", format_seconds(seconds), f"{seconds / len(rows):.1f} s per rollout")


def _skipped(rows: Sequence[Row]) -> Card:
    if not any(name in row for row in rows for name in _SKIPPED):
        return Card("Skipped steps", "")
    actor, critic = (_total(rows, name) for name in _SKIPPED)
    note = f"actor {actor:.0f}, critic {critic:.0f}"
    return Card("Skipped steps", f"{actor + critic:.0f}", note, bad=actor + critic > 0)


def _total(rows: Sequence[Row], name: str) -> float:
    return sum(value for value in column(rows, name)[1] if not math.isnan(value))
