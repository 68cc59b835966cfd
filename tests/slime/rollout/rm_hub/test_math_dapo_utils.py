"""DAPO's reward."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.rollout.rm_hub.math_dapo_utils import compute_score

RIGHT: list[tuple[str, object]] = [
    ("Thus\nAnswer: 42", "42"),
    ("answer :42", 42),
    ("Answer: $42$", "42"),
    ("Answer: \\boxed{42}", "42"),
    ("**Answer:** 42", "42"),
    ("Answer:\n42", "42"),
    ("Answer: 1,234", "1234"),
    ("Answer: 5\nNo.\nAnswer: 6", "6"),
    ("Answer: 34 dollars", "34"),
    ("Answer: 34.0", "34"),
    ("Answer: -7.", "-7"),
    ("Answer: \\frac{68}{2}", "34"),
    ("Answer: blue", "blue"),
]
WRONG: list[tuple[str, object]] = [
    ("Answer: 41", "42"),
    ("Answer: 42\nAnswer: 41", "42"),
    ("The answer is 42", "42"),
    ("\\boxed{42}", "42"),
    ("", "42"),
    ("Answer:", "42"),
    ("Answer: 42" + " so" * 100, "42"),
]


@pytest.mark.parametrize(("response", "label"), RIGHT)
def test_the_right_answer_scores_one(response: str, label: object) -> None:
    verdict = compute_score(response, label)
    assert (verdict["score"], verdict["acc"]) == (1.0, True)


@pytest.mark.parametrize(("response", "label"), WRONG)
def test_everything_else_scores_minus_one(response: str, label: object) -> None:
    verdict = compute_score(response, label)
    assert (verdict["score"], verdict["acc"]) == (-1.0, False)


def test_the_prediction_is_the_answers_line() -> None:
    assert compute_score("Answer: 3 or so \nEnd", "4")["pred"] == "3 or so"
    assert compute_score("3", "4")["pred"] == "[INVALID]"


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
@settings(max_examples=30, deadline=None)
def test_integers_are_right_exactly_where_they_are_the_same(given_number: int, label: int) -> None:
    assert compute_score(f"so\nAnswer: {given_number}", str(label))["acc"] is (given_number == label)
    assert compute_score(f"so\nAnswer: {label}", str(label))["acc"] is True
