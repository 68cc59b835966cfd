"""DeepScaleR's reward."""

import pytest

from slime.rollout.rm_hub.deepscaler import get_deepscaler_rule_based_reward

CASES: list[tuple[str, object, int]] = [
    ("<think>hm</think> It is \\boxed{42}.", "42", 1),
    ("<think>hm</think> It is \\boxed{41}.", "42", 0),
    ("</think>\\boxed{\\frac{1}{2}}", 0.5, 1),
    ("</think>\\boxed{1/2}", "\\boxed{0.5}", 1),
    ("</think> \\boxed{1}, or rather \\boxed{2}", "2", 1),
    ("<think>\\boxed{42}</think> I forgot.", "42", 0),
    ("<think>\\boxed{42}", "42", 0),
    ("</think> 42", "42", 0),
    ("\\boxed{42}", "42", 0),
    ("a </think> \\boxed{1} </think> \\boxed{2}", "2", 1),
    ("</think> \\boxed{2} </think> no", "2", 0),
    ("</think> None", "None", 0),
    ("###Response \\boxed{7}", "7", 1),
    ("</think>\\boxed{", "7", 0),
    ("</think>\\boxed{42}", "", 0),
]


@pytest.mark.parametrize(("response", "label", "reward"), CASES)
def test_the_boxed_answer_after_the_thinking_counts(response: str, label: object, reward: int) -> None:
    assert get_deepscaler_rule_based_reward(response, label) == reward
