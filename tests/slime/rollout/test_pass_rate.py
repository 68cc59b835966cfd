"""pass@k."""

from itertools import combinations

import pytest

from slime.rollout.pass_rate import pass_at_k, pass_rates


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 0, 1), (4, 1, 2), (5, 2, 3), (6, 5, 2), (6, 6, 6), (8, 3, 4)])
def test_it_is_the_share_of_all_choices_of_k_responses_with_a_right_one(n: int, correct: int, k: int) -> None:
    responses = [i < correct for i in range(n)]
    chosen = [any(choice) for choice in combinations(responses, k)]
    assert pass_at_k(n, correct, k) == pytest.approx(sum(chosen) / len(chosen))


def test_prompts_are_averaged_for_every_power_of_two_up_to_the_number_of_responses() -> None:
    rewards = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert pass_rates(rewards, 6) == {
        "pass@1": pytest.approx((1 / 6 + 2 / 6) / 2),
        "pass@2": pytest.approx((5 / 15 + 9 / 15) / 2),
        "pass@4": pytest.approx((10 / 15 + 14 / 15) / 2),
    }


@pytest.mark.parametrize(("rewards", "n"), [([1.0, 0.5], 2), ([1.0], 1), ([], 2), ([1.0, 0.0, 1.0], 2), ([-1.0, 1.0], 2)])
def test_other_rewards_and_single_responses_have_none(rewards: list[float], n: int) -> None:
    assert pass_rates(rewards, n) == {}
