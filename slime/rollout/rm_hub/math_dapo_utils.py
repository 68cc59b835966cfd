"""DAPO's reward: what stands after "Answer:" at the end of the response."""

import re
from typing import Any

from slime.rollout.rm_hub.math_utils import grade_answer_verl

_LAST_CHARACTERS = 300
_ANSWER = re.compile(r"answer\s*:[\s*]*([^\n]+)", re.IGNORECASE)
_NO_ANSWER = "[INVALID]"


def compute_score(solution_str: str, ground_truth: object) -> dict[str, Any]:
    """`score` 1.0 if the line after the last "Answer:" equals the label, else -1.0; `acc` whether it does; `pred` that line.

    Only the last 300 characters are read, as in slime, whose labels are integers; here any mathematics will do.
    """
    answers = _ANSWER.findall(solution_str[-_LAST_CHARACTERS:])
    answer = answers[-1].strip() if answers else _NO_ANSWER
    right = bool(answers) and (answer == str(ground_truth).strip() or grade_answer_verl(answer, ground_truth))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}
