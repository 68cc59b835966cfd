"""From a sample to its reward, by --custom-rm-path or --rm-type, checked before it can reach training."""

import math
from collections.abc import Sequence
from typing import Any

from slime.arguments.errors import UserError
from slime.utils.misc import load_function
from slime.utils.types import Sample


async def async_rm(args: Any, sample: Sample, **kwargs: Any) -> Any:
    """The reward of one sample, as its reward function gave it.

    Raises UserError, naming the sample, if the function raises or the number to train on is not finite.
    """
    try:
        reward = await _reward(args, sample, **kwargs)
    except Exception as error:
        raise UserError(f"the reward function {_name(args)} raised on {_describe(sample)}: {error!r}") from error
    value = reward
    if args.reward_key is not None:
        if not isinstance(reward, dict) or args.reward_key not in reward:
            raise UserError(f"the reward of {_describe(sample)} has no entry --reward-key {args.reward_key!r}: {reward!r}")
        value = reward[args.reward_key]
    if isinstance(value, str) or not _is_finite_number(value):
        raise UserError(f"the reward function {_name(args)} returned {value!r}, no finite number, for {_describe(sample)}")
    return reward


async def _reward(args: Any, sample: Sample, **kwargs: Any) -> Any:
    if args.custom_rm_path is not None:
        return await load_function(args.custom_rm_path)(args, sample, **kwargs)
    # Imported on use: sympy takes a second, and a custom reward needs none of it.
    from slime.rollout.rm_hub.math_rm import math_reward

    return math_reward(sample.response, sample.label)


def _is_finite_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _name(args: Any) -> str:
    return args.custom_rm_path or f"--rm-type {args.rm_type}"


def _describe(sample: Sample) -> str:
    return f"sample {sample.index} (prompt {str(sample.prompt)[-80:]!r}, response {sample.response[:80]!r})"


async def batched_async_rm(args: Any, samples: Sequence[Sample], **kwargs: Any) -> list[Any]:
    """The rewards of a group's samples, one each, by a --custom-rm-path that takes them all at once."""
    return list(await load_function(args.custom_rm_path)(args, samples, **kwargs))
