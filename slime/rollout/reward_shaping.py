"""From the rewards that samples got to those that training uses."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from fsdp_backend.config import GROUP_ESTIMATORS
from fsdp_backend.objective.group_baseline import group_normalized_rewards
from slime.arguments.errors import UserError
from slime.rollout.plug_in import PlugIn, describe, plug_in
from slime.utils.types import Sample


def post_processed_rewards(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """(rewards as the samples got them, rewards to train on), one a sample.

    By --custom-reward-post-process-path; without it normalised among the samples of a group_index where --advantage-estimator
    asks for it, else as they are. Raises UserError for a sample without a group_index that needs one.
    """
    own = plug_in(args, "custom_reward_post_process_path")
    if own is not None:
        return _post_processed_by(own, args, samples)
    rewards = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in GROUP_ESTIMATORS or not args.rewards_normalization:
        return rewards, rewards
    by_deviation = args.grpo_std_normalization and args.advantage_estimator != "reinforce_plus_plus_baseline"
    for sample in samples:
        if sample.group_index is None:
            raise UserError(
                f"sample {sample.index} has no group_index, which --advantage-estimator {args.advantage_estimator} compares by"
            )
    groups = torch.tensor([sample.group_index for sample in samples])
    return rewards, group_normalized_rewards(torch.tensor(rewards, dtype=torch.float64), groups, by_deviation).tolist()


def _post_processed_by(own: PlugIn, args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    about = describe(list(samples))
    answer = own(args, list(samples), about=about)
    wanted = f"(raw rewards, rewards), each {len(samples)} numbers"
    try:
        raw, rewards = ([float(each) for each in part] for part in answer)
    except (TypeError, ValueError):
        raise own.wrong(answer, wanted, about) from None
    if not len(raw) == len(rewards) == len(samples):
        raise own.wrong(answer, wanted, about)
    for sample, *values in zip(samples, raw, rewards, strict=True):
        if not all(map(math.isfinite, values)):
            raise UserError(f"{own} must return finite numbers, not {values} for sample {sample.index}")
    return raw, rewards
