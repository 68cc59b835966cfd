"""How numbers and durations are written."""

import pytest

from slime.observability.formatting import format_number, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03"), (90000, "25:00:00")],
)
def test_a_duration_is_written_like_a_clock(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (3.0, "3"), (-0.12345, "-0.123"), (1e-6, "1e-06"), (1234.56, "1,235"), (2.5e7, "2.5e+07")],
)
def test_a_number_is_written_with_three_digits(number: float, text: str) -> None:
    assert format_number(number) == text
