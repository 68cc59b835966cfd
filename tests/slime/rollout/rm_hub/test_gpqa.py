"""Multiple choice."""

import time
from typing import Any

import pytest

from slime.rollout.rm_hub.gpqa import compute_gpqa_reward

SETTLES_ON_C = [
    "The answer is C.",
    "Answer: C",
    "**Answer:** (C)",
    "answer is: **C**",
    "I choose option C because it fits",
    "My choice is C",
    "The final answer is $\\boxed{C}$",
    "Answer: \\boxed{\\text{C}}",
    "the answer is c",
    "C",
    "(c)",
    "C is correct",
    "(C) is the correct one",
    "C is correct, unlike A",
    "Answer: (C). Not A, not B",
    "A is tempting, B as well, but it must be C",
    "First I thought the answer is A. No: the answer is C.",
    "<think>The answer is A</think>The answer is C",
    "The answer is a tricky one. Option C",
    "Both A and B fail. The answer is C, and not D.",
]
SETTLES_ON_NOTHING = ["", "I don't know.", "maybe z", "The answer is a matter of taste"]
CHOICES = ["red fox", "blue whale", "green frog", "grey wolf"]


@pytest.mark.parametrize("response", SETTLES_ON_C)
def test_the_letter_that_the_response_settles_on_is_found(response: str) -> None:
    assert compute_gpqa_reward(response, "C", {"choices": CHOICES}) == 1.0
    assert [compute_gpqa_reward(response, label, {"choices": CHOICES}) for label in "ABD"] == [0.0] * 3


@pytest.mark.parametrize("response", [*SETTLES_ON_NOTHING, None])
def test_a_response_that_settles_on_nothing_is_worth_nothing(response: str | None) -> None:
    assert [compute_gpqa_reward(response, label, {"choices": CHOICES}) for label in "ABCD"] == [0.0] * 4


RIGHT_OPTION: list[tuple[object, dict[str, Any] | None]] = [
    ("B", None),
    (" b ", None),
    (1, None),
    (1, {"choices": CHOICES}),
    ("blue whale", {"choices": CHOICES}),
    ("Blue  whale.", {"choices": dict(enumerate(CHOICES))}),
    (None, {"correct_letter": "b"}),
    ("A", {"correct_letter": "B"}),
    ("anything", {"correct_letter": "B"}),
    (0, {"valid_letters": ["B", "X"]}),
]


@pytest.mark.parametrize(("label", "metadata"), RIGHT_OPTION)
def test_the_right_option_is_told_in_several_ways(label: object, metadata: dict[str, Any] | None) -> None:
    assert compute_gpqa_reward("The answer is B", label, metadata) == 1.0
    assert compute_gpqa_reward("The answer is X", label, metadata) == 0.0


@pytest.mark.parametrize(
    ("response", "label", "metadata", "reward"),
    [
        ("It is the Blue Whale!", "B", {"choices": CHOICES}, 1.0),
        ("It is the red fox", "B", {"choices": CHOICES}, 0.0),
        ("It is the bluewhale", "B", {"choices": CHOICES}, 0.0),
        ("It is the blue whaler", "B", {"choices": CHOICES}, 0.0),
        ("<think>blue whale</think> no idea", "B", {"choices": CHOICES}, 0.0),
        ("it is krypton", "Krypton", None, 1.0),
        ("it is krypton", None, {"correct_answer": "krypton"}, 1.0),
        ("it is krypton", "B", {"answer_text": "krypton"}, 1.0),
        ("not blue whale, the answer is A", "B", {"choices": CHOICES}, 0.0),
    ],
)
def test_without_a_letter_the_options_text_counts(
    response: str, label: object, metadata: dict[str, Any] | None, reward: float
) -> None:
    assert compute_gpqa_reward(response, label, metadata) == reward


def test_only_letters_of_options_count() -> None:
    assert compute_gpqa_reward("I think B", "B", {"choices": CHOICES}) == 1.0
    assert compute_gpqa_reward("B, said I", "B", {"choices": CHOICES}) == 1.0
    assert compute_gpqa_reward("The answer is J", 9) == 1.0


@pytest.mark.parametrize(
    ("label", "reason"), [(None, "neither a label"), (4, "numbered from 0 to 3"), (-1, "numbered"), (0.5, "numbered")]
)
def test_a_row_that_does_not_say_which_is_right_is_an_error(label: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compute_gpqa_reward("A", label, {"choices": CHOICES})


@pytest.mark.parametrize("piece", ["A ", "answer", "answer is (", "A is the ", "\\boxed{", "option\n"])
@pytest.mark.parametrize("filler", [" ", "(", "\n"])
def test_a_long_response_takes_no_long_time(piece: str, filler: str) -> None:
    start = time.monotonic()
    compute_gpqa_reward((piece + filler * 50_000) * 2, "B")
    assert time.monotonic() - start < 2
