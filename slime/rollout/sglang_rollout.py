"""The default rollout function, and the door to what slime's plug-ins import from this path."""

import asyncio
from typing import Any

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.dynamic_sampling import abort, generate_rollout_async
from slime.rollout.evaluation import eval_rollout, eval_rollout_single_dataset
from slime.rollout.generate import GenerateState, generate, generate_and_rm, generate_and_rm_group
from slime.utils.http_utils import shared_connections

__all__ = [
    "GenerateState",
    "abort",
    "eval_rollout",
    "eval_rollout_single_dataset",
    "generate",
    "generate_and_rm",
    "generate_and_rm_group",
    "generate_rollout",
    "generate_rollout_async",
]


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """slime's rollout function: groups of rewarded samples, or with `evaluation` the results of every evaluation data set."""

    async def work() -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        async with shared_connections():
            if evaluation:
                return await eval_rollout(args, rollout_id)
            output, put_back = await generate_rollout_async(args, rollout_id, data_source)
        if put_back:
            data_source.add_samples(put_back)
        return output

    return asyncio.run(work())
