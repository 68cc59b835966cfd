"""Which groups are worth training on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.filter_hub.dynamic_sampling_filters import check_reward_nonzero_std
from slime.utils.types import Sample

ARGS = SimpleNamespace(reward_key=None)


def group(*rewards: Any) -> list[Sample | list[Sample]]:
    return [Sample(reward=reward) for reward in rewards]


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (1, 1, 1, 0), (0.5, 0.5001), (False, True), (torch.tensor(1.0), 2)])
def test_a_group_whose_rewards_differ_is_kept(rewards: tuple[Any, ...]) -> None:
    assert check_reward_nonzero_std(ARGS, group(*rewards)) == DynamicFilterOutput(True, None, False)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [((1, 1), "zero_std_1.0"), ((0.0,) * 8, "zero_std_0.0"), ((0.3, 0.3 + 1e-9), "zero_std_0.3"), ((-1.0,), "zero_std_-1.0")],
)
def test_a_group_whose_rewards_are_the_same_is_dropped_for_that_reason(rewards: tuple[float, ...], reason: str) -> None:
    output = check_reward_nonzero_std(ARGS, group(*rewards), anything="else")
    assert output == DynamicFilterOutput(keep=False, reason=reason, keep_when_insufficient=False)
    assert output.keep is False


def test_the_entry_of_the_reward_key_is_compared() -> None:
    samples = group({"acc": 1.0, "length": 3}, {"acc": 1.0, "length": 4})
    assert not check_reward_nonzero_std(SimpleNamespace(reward_key="acc"), samples).keep
    assert check_reward_nonzero_std(SimpleNamespace(reward_key="length"), samples).keep


def test_samples_made_from_one_count_once() -> None:
    one, other = [Sample(reward=1.0), Sample(reward=1.0)], [Sample(reward=0.0)]
    assert check_reward_nonzero_std(ARGS, [one, other]).keep
    assert not check_reward_nonzero_std(ARGS, [one, one]).keep


def test_only_keep_needs_to_be_given() -> None:
    assert DynamicFilterOutput(keep=True) == DynamicFilterOutput(keep=True, reason=None, keep_when_insufficient=False)
