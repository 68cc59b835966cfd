"""Multiple choice, as in GPQA: which option the response settles on."""

import re
import string
from collections.abc import Sequence
from typing import Any

_DEFAULT_LETTERS = string.ascii_uppercase[:10]
# The letter may be dressed up: "answer is: **(B)**", "option \boxed{\text{B}}". "a" before a word is an article.
_NAMED = re.compile(
    r"\b(?:answer|option|choice)(?:\s+is)?\b(?:\W|\\(?:boxed|text|textbf|mathrm)\b)*\b(?!a\s+\w)([a-z])\b(?!')", re.IGNORECASE
)
_CALLED_RIGHT = re.compile(r"\b([A-Z])\b\W*(?<=\s)is\s+(?:the\s+)?correct\b")
_STANDING_ALONE = re.compile(r"\b([A-Z])\b(?!')")


def compute_gpqa_reward(response: str | None, label: object, metadata: dict[str, Any] | None = None) -> float:
    """1.0 if the response, after its </think>, settles on the right option or, naming no letter, holds its text; else 0.0.

    The right option is metadata `correct_letter`, or else the label: its letter, its number from 0, or its text. metadata
    `choices` are the options' texts, `valid_letters` their letters; without either, A to J. Raises ValueError where nothing
    says which option is right.
    """
    metadata = metadata or {}
    choices = _choices(metadata)
    letters = [str(letter).upper() for letter in metadata.get("valid_letters") or string.ascii_uppercase[: len(choices)]]
    letters = letters or list(_DEFAULT_LETTERS)
    right = _right_letter(label, letters, choices, metadata)
    texts = [metadata[key] for key in ("correct_answer", "answer_text") if metadata.get(key)]
    if right in letters[: len(choices)]:
        texts.append(choices[letters.index(right)])
    elif right is None and label is not None:
        texts.append(label)
    if right is None and not texts:
        raise ValueError("neither a label nor metadata correct_letter says which option is right")
    answer = (response or "").rpartition("</think>")[2]
    given = _given_letter(answer, letters)
    if given and right:
        return float(given == right)
    said = f" {_words(answer)} "
    return float(any(f" {_words(text)} " in said for text in texts if _words(text)))


def _choices(metadata: dict[str, Any]) -> list[str]:
    choices = metadata.get("choices") or ()
    return [str(choice) for choice in (choices.values() if isinstance(choices, dict) else choices)]


def _right_letter(label: object, letters: Sequence[str], choices: Sequence[str], metadata: dict[str, Any]) -> str | None:
    if isinstance(named := metadata.get("correct_letter"), str):
        return named.strip().upper()
    if isinstance(label, int | float):
        if not 0 <= label < len(letters) or label != int(label):
            raise ValueError(f"label {label} is no option: they are numbered from 0 to {len(letters) - 1}")
        return letters[int(label)]
    text = str(label).strip()
    if text.upper() in letters:
        return text.upper()
    return next((letter for letter, choice in zip(letters, choices, strict=False) if _words(choice) == _words(text)), None)


def _given_letter(answer: str, letters: Sequence[str]) -> str | None:
    """The letter that the answer consists of, or the last that it names as answer, calls correct, or has standing alone."""
    if (alone := answer.strip(" \t\n().*$").upper()) in letters:
        return alone
    for pattern in (_NAMED, _CALLED_RIGHT, _STANDING_ALONE):
        found: list[str] = [letter.upper() for letter in pattern.findall(answer) if letter.upper() in letters]
        if found:
            return found[-1]
    return None


def _words(text: object) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", str(text).lower()))
