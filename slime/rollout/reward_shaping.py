"""From the rewards that samples got to those that training uses."""

from collections.abc import Sequence
from typing import Any

import torch

from fsdp_backend.config import GROUP_ESTIMATORS
from fsdp_backend.objective.group_baseline import group_normalized_rewards
from slime.arguments.errors import UserError
from slime.utils.types import Sample


def shaped_rewards(args: Any, samples: Sequence[Sample]) -> list[float]:
    """One a sample: normalised among the samples of its group_index where --advantage-estimator asks for it, else as it is.

    Raises UserError for a sample without a group_index that needs one.
    """
    rewards = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in GROUP_ESTIMATORS or not args.rewards_normalization:
        return rewards
    by_deviation = args.grpo_std_normalization and args.advantage_estimator != "reinforce_plus_plus_baseline"
    for sample in samples:
        if sample.group_index is None:
            raise UserError(
                f"sample {sample.index} has no group_index, which --advantage-estimator {args.advantage_estimator} compares by"
            )
    groups = torch.tensor([sample.group_index for sample in samples])
    return group_normalized_rewards(torch.tensor(rewards, dtype=torch.float64), groups, by_deviation).tolist()
