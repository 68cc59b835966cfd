"""What the report's panels hold."""

import math

from slime.observability import names
from slime.observability.panels import PANELS, TIME_TITLE, Panel, Row, build_panels


def panel_of(title: str, rows: list[Row]) -> Panel:
    return next(panel for panel in build_panels(rows) if panel.title == title)


def test_every_drawn_metric_is_declared() -> None:
    declared = {metric.pattern for metric in names.METRICS}
    assert {line.pattern for panel in PANELS for line in panel.lines} <= declared


def test_a_metric_written_now_and_then_has_points_only_there() -> None:
    rows: list[Row] = [{"rollout": 0, "eval/a/reward": 0.1}, {"rollout": 1}, {"rollout": 2, "eval/a/reward": 0.3}]
    (series,) = panel_of("Reward", rows).series
    assert (series.label, series.x, series.values) == ("eval a", [0, 2], [0.1, 0.3])


def test_passes_are_in_the_order_of_their_numbers() -> None:
    rows: list[Row] = [{"rollout": 0} | {f"train/critic-pass_{k}/value_loss": 1.0 for k in (10, 2, 1)}]
    assert [series.label for series in panel_of("Value loss", rows).series] == ["pass 1", "pass 2", "pass 10"]


def test_a_pass_has_one_colour_before_and_after_it_and_passes_differ() -> None:
    prefix = "train/critic-pass_"
    rows: list[Row] = [
        {"rollout": 0} | {f"{prefix}{k}/explained_variance_{when}": 0.5 for k in (1, 2) for when in ("before", "after")}
    ]
    colors = {series.label: series.color for series in panel_of("Explained variance", rows).series}
    assert colors["before pass 1"] == colors["after pass 1"]
    assert colors["before pass 2"] == colors["after pass 2"]
    assert colors["after pass 1"] != colors["after pass 2"]


def test_a_metric_of_ones_own_correction_is_drawn_under_its_own_name() -> None:
    rows: list[Row] = [{"rollout": 0, "train/tis": 1.0, "train/custom_tis/mean weight": 0.5}]
    shown = {series.label: series.values for series in panel_of("Off-policy correction", rows).series}
    assert shown == {"importance ratio": [1.0], "mean weight": [0.5]}


def test_explained_variance_on_samples_held_out_has_a_panel_of_its_own() -> None:
    rows: list[Row] = [{"rollout": 0, "train/critic-pass_1/holdout_explained_variance_after": 0.5}]
    assert [panel.title for panel in build_panels(rows)] == ["Explained variance, held out"]


def test_a_metric_that_is_nothing_but_nan_has_no_panel() -> None:
    assert build_panels([{"rollout": 0, "train/entropy": math.nan}]) == []


def test_the_time_left_over_by_the_phases_is_shown() -> None:
    rows: list[Row] = [{"rollout": 0, "time/generate": 6.0, "time/save": math.nan, "time/rollout": 10.0}]
    shown = {series.label: series.values for series in panel_of(TIME_TITLE, rows).series}
    assert shown == {"generate": [6.0], "everything else": [4.0]}


def test_phases_longer_than_the_whole_leave_nothing_over() -> None:
    rows: list[Row] = [{"rollout": 0, "time/generate": 6.0, "time/evaluate": 9.0, "time/rollout": 10.0}]
    assert [series.label for series in panel_of(TIME_TITLE, rows).series] == ["generate", "evaluate"]


def test_pass_rates_have_a_line_for_each_data_set_and_number() -> None:
    rows: list[Row] = [{"rollout": 0, "eval/a/pass@1": 0.1, "eval/a/pass@2": 0.2, "eval/b/pass@1": 0.3}]
    assert [(line.label, line.values) for line in panel_of("Pass rate", rows).series] == [
        ("a pass@1", [0.1]),
        ("a pass@2", [0.2]),
        ("b pass@1", [0.3]),
    ]
