"""A calculator that the model can call in the middle of its response: what it writes up to `=` is the call, what follows up to
`;` is the calculator's answer, which the model reads and does not learn to write."""

import re
from typing import Any

from slime.rollout.sglang_rollout import generate as generate_tokens
from slime.utils.types import Sample

CALL, END = "=", ";"
MAX_CALLS = 2


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A --custom-generate-function-path: generate up to a call, append its answer as an observation, go on."""
    params = {**sampling_params, "stop": [CALL]}
    for calls in range(MAX_CALLS + 1):
        await generate_tokens(args, sample, params)
        if sample.status != Sample.Status.COMPLETED or not sample.response.endswith(CALL) or calls == MAX_CALLS:
            return sample
        answer = calculate(sample.response) + END
        tokens = args.tokenizer.encode(answer, add_special_tokens=False)
        sample.append_response_tokens(args, tokens=tokens, trainable=False, text=answer)
    return sample


def calculate(response: str) -> str:
    """The answer to the call at the end of the response; `error` if it is no sum, difference or product of two numbers."""
    call = re.fullmatch(r"(\d+)([-+*])(\d+)", response.rpartition(END)[2].removesuffix(CALL))
    if call is None:
        return "error"
    one, other = int(call[1]), int(call[3])
    return str({"+": one + other, "-": one - other, "*": one * other}[call[2]])


async def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """1 if what stands after the calculator's last answer is the right number, else 0."""
    return float(sample.response.rpartition(END)[2] == sample.label)
