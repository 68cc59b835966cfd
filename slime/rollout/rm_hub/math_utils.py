"""Mathematical answers: where they stand in a text, and whether two are equal."""


def extract_answer(passage: str) -> str | None:
    """What the last \\boxed{...} holds. None if there is none, or its braces do not close."""
    _, boxed, rest = passage.rpartition("\\boxed{")
    depth = 1
    for position, letter in enumerate(rest if boxed else ""):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[:position]
    return None


def grade_answer_verl(solution_str: str, ground_truth: object) -> bool:
    """Whether the answer that math-verify finds in the response equals the label; False where it finds none.

    Of several boxed answers the last counts, as in slime; math-verify alone would take them together as a set.
    """
    # Imported on use: sympy takes a second, and only the processes that judge need it.
    from math_verify import parse, verify

    _, boxed, last = solution_str.rpartition("\\boxed")
    return bool(verify(parse(f"${ground_truth}$"), parse(boxed + last)))
