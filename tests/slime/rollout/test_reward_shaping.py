"""Which rewards training uses, by estimator."""

import pytest

from slime.rollout.reward_shaping import post_processed_rewards
from slime.utils.types import Sample
from tests.slime.rollout.runs import default_args

RAW = [1.0, 10.0, 3.0, 30.0]
CENTRED = [-1.0, -10.0, 1.0, 10.0]
SCALED = [-(0.5**0.5), -(0.5**0.5), 0.5**0.5, 0.5**0.5]
# The responses to a prompt are not next to each other.
SAMPLES = [Sample(group_index=group, reward=reward) for group, reward in zip([5, 2, 5, 2], RAW, strict=True)]

CASES = [
    ("ppo", {}, RAW),
    ("reinforce_plus_plus", {}, RAW),
    ("reinforce_plus_plus_baseline", {}, CENTRED),
    ("reinforce_plus_plus_baseline", {"rewards_normalization": False}, RAW),
    *((name, {}, SCALED) for name in ("grpo", "gspo", "cispo")),
    *((name, {"grpo_std_normalization": False}, CENTRED) for name in ("grpo", "gspo", "cispo")),
    ("grpo", {"rewards_normalization": False}, RAW),
]


@pytest.mark.parametrize(("estimator", "flags", "expected"), CASES)
def test_the_estimator_says_what_rewards_are_compared_with(
    estimator: str, flags: dict[str, bool], expected: list[float]
) -> None:
    args = default_args(advantage_estimator=estimator, **flags)
    assert post_processed_rewards(args, SAMPLES)[1] == pytest.approx(expected, rel=2e-6)


def test_the_entry_of_the_reward_key_is_compared() -> None:
    samples = [Sample(group_index=0, reward={"acc": acc, "length": 9.0}) for acc in (0.0, 1.0)]
    args = default_args(advantage_estimator="reinforce_plus_plus_baseline", reward_key="acc")
    assert post_processed_rewards(args, samples)[1] == [-0.5, 0.5]
