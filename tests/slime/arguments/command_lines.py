"""Command lines for the tests of the flags."""

from pathlib import Path

import pytest

from slime.arguments.errors import UserError
from slime.arguments.parse import parse_arguments
from slime.arguments.run_config import RunConfig


def required(checkpoint: Path) -> list[str]:
    """The fewest flags that start a run: 4 prompts, 2 responses to each, so 8 samples a rollout."""
    words = f"--hf-checkpoint {checkpoint} --prompt-data prompts.jsonl --num-rollout 3 --rollout-batch-size 4"
    return [*words.split(), *["--n-samples-per-prompt", "2", "--rm-type", "math", "--label-key", "answer"]]


def parse(checkpoint: Path, *flags: str) -> RunConfig:
    """The RunConfig of the required flags and these."""
    return parse_arguments([*required(checkpoint), *flags])


def refusal(argv: list[str]) -> str:
    """The one line that a person reads when these flags are refused."""
    with pytest.raises(UserError) as caught:
        parse_arguments(argv)
    message = str(caught.value)
    assert "\n" not in message
    return message
