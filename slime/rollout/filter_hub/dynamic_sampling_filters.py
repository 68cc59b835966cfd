"""Dynamic sampling filters that come with slime."""

import statistics
from collections.abc import Sequence
from typing import Any

from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

_SMALLEST_STD = 1e-6


def check_reward_nonzero_std(args: Any, samples: Sequence[Sample | list[Sample]], **kwargs: Any) -> DynamicFilterOutput:
    """Keep a group whose rewards differ: where they are all the same, no response is better than another.

    Where a generate function made a list of samples from one, the first stands for it: they share the reward.
    """
    first = [sample[0] if isinstance(sample, list) else sample for sample in samples]
    rewards = [float(sample.get_reward_value(args)) for sample in first]
    if len(rewards) > 1 and statistics.stdev(rewards) > _SMALLEST_STD:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"zero_std_{round(rewards[0], 1)}")
