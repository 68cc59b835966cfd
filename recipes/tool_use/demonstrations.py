"""Supervised warm-up: the calculator's answers stand in the demonstrations, but are not learned."""

from typing import Any

from recipes.tool_use.calculator import CALL, END
from slime.rollout import sft_rollout
from slime.rollout.base_types import RolloutFnTrainOutput


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """A --rollout-function-path: as for any supervised training, with the answers masked."""
    output = sft_rollout.generate_rollout(args, rollout_id, data_source)
    call, end = args.tokenizer.convert_tokens_to_ids([CALL, END])
    for sample in (sample for group in output.samples for sample in group):
        sample.loss_mask = mask(sample.tokens[-sample.response_length :], call, end)
    return output


def mask(response: list[int], call: int, end: int) -> list[int]:
    """0 from behind a call up to and with the end of its answer, 1 elsewhere."""
    entries, answering = [], False
    for token in response:
        entries.append(int(not answering))
        answering = token == call or (answering and token != end)
    return entries
