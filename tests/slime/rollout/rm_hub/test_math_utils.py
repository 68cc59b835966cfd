"""Mathematical answers: where they stand, and whether two are equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.rollout.rm_hub.math_utils import extract_answer, grade_answer_verl

BOXED = [
    ("so \\boxed{42}.", "42"),
    ("\\boxed{3}, no: \\boxed{4}", "4"),
    ("\\boxed{\\frac{1}{2}} {and} more}", "\\frac{1}{2}"),
    ("\\boxed{}", ""),
    ("\\boxed{ Paris }", " Paris "),
    ("\\boxed{3} then \\boxed{4", None),
    ("42", None),
    ("", None),
    ("\\boxed 4", None),
]
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
def test_an_answer_equal_to_the_label_is_right(response: str, label: object) -> None:
    assert grade_answer_verl(response, label) is True


@pytest.mark.parametrize(("response", "label"), WRONG)
def test_every_other_response_is_wrong(response: str, label: object) -> None:
    assert grade_answer_verl(response, label) is False


@pytest.mark.parametrize(("passage", "answer"), BOXED)
def test_the_last_box_is_read_to_its_closing_brace(passage: str, answer: str | None) -> None:
    assert extract_answer(passage) == answer


@given(
    st.recursive(st.sampled_from(["", "x", "1+", "\\frac"]), lambda s: st.lists(s.map(lambda t: "{" + t + "}")).map("".join))
)
@settings(max_examples=50)
def test_whatever_is_boxed_with_its_braces_closed_is_found_again(content: str) -> None:
    assert extract_answer(f"{{a}} \\boxed{{1}} }}{{ \\boxed{{{content}}} and }} more {{") == content
