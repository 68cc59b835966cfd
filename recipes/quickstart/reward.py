"""The reward: reasoning-gym's own verifier of the task that the prompt came from."""

from functools import cache
from typing import Any

from reasoning_gym import get_score_answer_fn

from slime.utils.types import Sample


async def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """1 for the right answer; less for a near miss, where the task's verifier grades those."""
    score = verifier(sample.metadata["task"])
    return float(score(sample.response, {"answer": sample.label, "metadata": {}}))


@cache
def verifier(task: str) -> Any:
    """Made once a task: some read a word list."""
    return get_score_answer_fn(task)
