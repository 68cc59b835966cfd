"""The key numbers at the top of the report."""

import math

from slime.observability.key_numbers import key_numbers
from slime.observability.panels import Row


def cards_of(rows: list[Row]) -> dict[str, str]:
    return {card.label: card.value for card in key_numbers(rows)}


def test_first_and_last_values_skip_rollouts_without_them() -> None:
    rows: list[Row] = [
        {"rollout": 0, "eval/a/reward": math.nan},
        {"rollout": 1, "eval/a/reward": 0.25},
        {"rollout": 2},
        {"rollout": 3, "eval/a/reward": 0.75},
        {"rollout": 4},
    ]
    assert cards_of(rows) == {"Rollouts": "5", "Eval reward, a": "0.25 → 0.75"}


def test_the_explained_variance_is_the_last_passes() -> None:
    rows: list[Row] = [
        {"rollout": i} | {f"train/critic-pass_{k}/explained_variance_after": 0.1 * k + 0.5 * i for k in (1, 2)} for i in (0, 1)
    ]
    assert cards_of(rows)["Explained variance"] == "0.20 → 0.70"


def test_without_an_evaluation_the_rollouts_reward_is_shown() -> None:
    assert cards_of([{"rollout": 0, "rollout/reward": 0.5}])["Rollout reward"] == "0.50"


def test_total_time_is_the_sum_of_whole_rollouts() -> None:
    rows: list[Row] = [{"rollout": i, "time/generate": 1.0, "time/rollout": 90.0} for i in range(2)]
    assert cards_of(rows)["Total time"] == "3:00"


def test_total_time_is_the_sum_of_the_phases_where_the_whole_is_not_known() -> None:
    assert cards_of([{"rollout": 0, "time/generate": 50.0, "time/save": 15.0}])["Total time"] == "1:05"


def test_skipped_steps_are_added_up_and_bad_when_there_are_any() -> None:
    rows: list[Row] = [{"rollout": i, "train/skipped_steps": float(i), "train/critic-skipped_steps": 1.0} for i in (0, 1)]
    card = next(card for card in key_numbers(rows) if card.label == "Skipped steps")
    assert (card.value, card.note, card.bad) == ("3", "actor 1, critic 2", True)


def test_no_skipped_steps_are_not_bad() -> None:
    card = key_numbers([{"rollout": 0, "train/skipped_steps": 0.0}])[-1]
    assert (card.label, card.value, card.bad) == ("Skipped steps", "0", False)
