"""The reward of a mathematical answer."""

import pytest

from slime.rollout.rm_hub.math_rm import math_reward

RIGHT: list[tuple[str, object]] = [
    ("The answer is \\boxed{42}.", "42"),
    ("The answer is 42", "42"),
    ("so we get $42$", 42),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{0.5}", "\\frac{1}{2}"),
    ("first \\boxed{3}, no: \\boxed{4}", "4"),
    ("\\boxed{3}. Wait, that is wrong. It is \\boxed{4}.", "4"),
    ("$x = 7$", "7"),
    ("\\boxed{2\\sqrt{2}}", "\\sqrt{8}"),
    ("\\boxed{(x+1)^2}", "x^2+2x+1"),
    ("\\boxed{1,000}", "1000"),
    ("\\boxed{-3}", "-3"),
]
WRONG: list[tuple[str, object]] = [
    ("The answer is \\boxed{41}.", "42"),
    ("\\boxed{-42}", "42"),
    ("\\boxed{3} or \\boxed{4}", "3"),
    ("\\boxed{3} or \\boxed{4}", "3, 4"),
    ("I do not know.", "42"),
    ("", "42"),
    ("\\boxed{}", "42"),
    ("\\boxed{", "42"),
    ("\\boxed{\\frac{1}{3}}", "0.5"),
    ("4 is in the middle but the answer is \\boxed{5}", "4"),
    ("\\boxed{42}", None),
    ("\\boxed{42}", ""),
]


@pytest.mark.parametrize(("response", "label"), RIGHT)
def test_an_answer_equal_to_the_label_is_worth_one(response: str, label: object) -> None:
    assert math_reward(response, label) == 1.0


@pytest.mark.parametrize(("response", "label"), WRONG)
def test_every_other_response_is_worth_nothing(response: str, label: object) -> None:
    assert math_reward(response, label) == 0.0
