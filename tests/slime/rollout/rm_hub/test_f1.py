"""Overlap of words. The numbers are worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.rollout.rm_hub.f1 import f1_score, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat, a dog!", "cat dog"),
        ("An", ""),
        ("theatre and another", "theatre and another"),
        ("U.S.A.", "usa"),
        ("it's\n\tso", "its so"),
    ],
)
def test_case_punctuation_articles_and_spaces_do_not_count(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


CASES: list[tuple[str | None, object, float, float, float]] = [
    ("Paris", "paris!", 1, 1, 1),
    ("in Paris France", "Paris", 1 / 2, 1 / 3, 1),
    ("Paris", "Paris in France", 1 / 2, 1, 1 / 3),
    ("red red blue", "red green red red", 4 / 7, 2 / 3, 1 / 2),
    ("London", "Paris", 0, 0, 0),
    ("", "Paris", 0, 0, 0),
    (None, "Paris", 0, 0, 0),
    ("the", "a", 0, 0, 0),
    ("yes", "Yes.", 1, 1, 1),
    ("yes it is", "yes", 0, 0, 0),
    ("no", "no way", 0, 0, 0),
    ("noanswer", "no answer", 0, 0, 0),
    ("1969", 1969, 1, 1, 1),
]


@pytest.mark.parametrize(("prediction", "label", "f1", "precision", "recall"), CASES)
def test_words_are_counted_with_their_multiplicity(
    prediction: str | None, label: object, f1: float, precision: float, recall: float
) -> None:
    assert f1_score(prediction, label) == pytest.approx((f1, precision, recall))


@given(st.text("abc xyz."), st.text("abc xyz."))
def test_swapping_the_texts_swaps_precision_and_recall(one: str, other: str) -> None:
    f1, precision, recall = f1_score(one, other)
    assert f1_score(other, one) == pytest.approx((f1, recall, precision))
    assert 0 <= min(precision, recall) <= f1 + 1e-12 <= max(precision, recall) + 1e-9
