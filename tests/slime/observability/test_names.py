"""The declared metric names."""

import pytest

from slime.observability import names

DECLARED = [
    "rollout/reward",
    "rollout/dynamic_filter/drop_zero_std_0.0",
    "rollout/turns",
    "eval/gsm8k/pass@4",
    "eval/gsm8k/reward",
    "eval/math/level 5/truncated",
    "train/ppo_kl",
    "train/critic-lr",
    "train/critic-pass_1/value_loss",
    "train/critic-pass_12/explained_variance_after",
    "train/critic-pass_2/holdout_explained_variance_before",
    "train/custom_tis/mean weight",
    "time/critic_update",
    "time/critic_wait",
    "time/rollout",
    "perf/tokens_per_second",
]
UNDECLARED = [
    "train/critic-pass_0/value_loss",
    "train/critic-pass_x/value_loss",
    "train/critic-pass_{k}/value_loss",
    "train/critic_lr",
    "time/lunch",
    "rollout/",
    "eval/",
    "train/custom_tis/",
    "reward",
    "",
]


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_name_is_accepted(name: str) -> None:
    names.check(name)


@pytest.mark.parametrize("name", UNDECLARED)
def test_an_undeclared_name_is_rejected_and_named(name: str) -> None:
    with pytest.raises(ValueError, match="is not declared") as caught:
        names.check(name)
    assert repr(name) in str(caught.value)


def test_every_metric_is_declared_once_with_a_unit_and_a_meaning() -> None:
    patterns = [metric.pattern for metric in names.METRICS]
    assert len(set(patterns)) == len(patterns)
    assert all(metric.unit and metric.meaning for metric in names.METRICS)


def test_a_name_tells_what_its_placeholders_stand_for() -> None:
    assert names.match("eval/{dataset}/reward", "eval/gsm8k/reward") == {"dataset": "gsm8k"}
    assert names.match("train/critic-pass_{k}/value_loss", "train/critic-pass_3/value_loss") == {"k": "3"}
    assert names.match("rollout/reward", "rollout/reward") == {}
    assert names.match("rollout/reward", "rollout/reward_std") is None


def test_finding_a_name_gives_its_declaration() -> None:
    assert names.find("time/generate").unit == "seconds"
