"""Reward of a mathematical answer."""

from math_verify import parse, verify


def math_reward(response: str, label: object) -> float:
    """1.0 if the answer that math-verify finds in the response equals the label, else 0.0 (also where it finds none).

    Of several boxed answers the last counts, as in slime; math-verify alone would take them together as a set.
    """
    _, boxed, last = response.rpartition("\\boxed")
    return float(verify(parse(f"${label}$"), parse(boxed + last)))
