"""Plug-ins as a person would write them, and broken ones."""

import asyncio
from typing import Any

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.sglang_rollout import generate
from slime.utils.types import Sample

NUMBER = 3
cancelled: list[int] = []


async def length_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    return float(sample.response_length)


async def failing_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    raise KeyError("no such answer")


async def two_turns(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Asks the engine twice, with an observation of two tokens that is not trained on between the turns."""
    sample = await generate(args, sample, {**sampling_params, "max_new_tokens": 3, "ignore_eos": True})
    sample.append_response_tokens(args, tokens=[7, 8], trainable=False)
    sample = await generate(args, sample, {**sampling_params, "max_new_tokens": 7, "ignore_eos": True})
    sample.reward = 0.25
    return sample


async def fails_at_three_and_hangs_elsewhere(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    assert sample.index is not None
    if sample.index == 3:
        raise ZeroDivisionError("sample 3 is bad")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(sample.index)
        raise
    return sample


async def forgets_to_return(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> None:
    await generate(args, sample, sampling_params)


def constant_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Every response is [1, 2], worth the rollout's number."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in (sample for group in groups for sample in group):
        sample.tokens, sample.response_length, sample.status = [5, 1, 2], 2, Sample.Status.TRUNCATED
        sample.reward = float(rollout_id)
    if not evaluation:
        return RolloutFnTrainOutput(groups)
    samples = [sample for group in groups for sample in group]
    result = {"rewards": [0.0, 1.0, 1.0, 1.0], "truncated": [True, False, False, False], "samples": samples}
    return RolloutFnEvalOutput({"words": result})


def raw_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The same without slime's output classes."""
    output = constant_rollout(args, rollout_id, data_source, evaluation)
    return output.data if isinstance(output, RolloutFnEvalOutput) else output.samples
