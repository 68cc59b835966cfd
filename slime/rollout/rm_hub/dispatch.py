"""From samples to their rewards, by --custom-rm-path or --rm-type, checked before they can reach training."""

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any, get_args

from slime.arguments.errors import UserError
from slime.arguments.reward_types import IFBENCH_MISSING, NEED_LABEL, RewardType
from slime.rollout.rm_hub.deepscaler import get_deepscaler_rule_based_reward
from slime.rollout.rm_hub.f1 import f1_score
from slime.rollout.rm_hub.gpqa import compute_gpqa_reward
from slime.rollout.rm_hub.judge import Unjudged, judge
from slime.rollout.rm_hub.math_dapo_utils import compute_score
from slime.rollout.rm_hub.math_utils import extract_answer, grade_answer_verl
from slime.rollout.rm_hub.remote_rm import remote_rm
from slime.utils.misc import load_function
from slime.utils.types import Sample

# What mathematics is judged by, and what a response is worth that can't be judged in time.
_MATHEMATICS: dict[str, tuple[Any, Any]] = {
    "math": (grade_answer_verl, False),
    "deepscaler": (get_deepscaler_rule_based_reward, 0),
    "dapo": (compute_score, compute_score("", None)),
}


async def async_rm(args: Any, sample: Sample, **kwargs: Any) -> Any:
    """The reward of one sample, as its reward function gave it.

    Raises UserError, naming the sample, if the function raises or the number to train on is not finite.
    """
    function = _function(args, sample)
    try:
        if args.custom_rm_path is not None:
            reward = await load_function(args.custom_rm_path)(args, sample, **kwargs)
        else:
            reward = await _built_in(args, sample)
    except Exception as error:
        raise UserError(f"the reward function {function} raised on {_describe(sample)}: {error!r}") from error
    _require_number(args, sample, function, reward)
    return reward


async def batched_async_rm(args: Any, samples: Sequence[Sample], **kwargs: Any) -> list[Any]:
    """The rewards of a group's samples, one each, in order. A function of --custom-rm-path takes them all at once: async
    (args, samples, **kwargs) -> list.

    Raises UserError, naming the samples, if it raises or returns something else than one finite number for each.
    """
    if args.custom_rm_path is None:
        return list(await asyncio.gather(*(async_rm(args, sample, **kwargs) for sample in samples)))
    function = f"--custom-rm-path {args.custom_rm_path}"
    group = f"the group of samples {', '.join(str(sample.index) for sample in samples)}"
    try:
        answer = await load_function(args.custom_rm_path)(args, samples, **kwargs)
    except Exception as error:
        raise UserError(f"the reward function {function} raised on {group}: {error!r}") from error
    rewards = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(rewards, list | tuple) or len(rewards) != len(samples):
        raise UserError(
            f"the reward function {function} returned {str(answer)[:200]} for {group}: it must return a list of "
            f"{len(samples)} rewards, one a sample"
        )
    for sample, reward in zip(samples, rewards, strict=True):
        _require_number(args, sample, function, reward)
    return list(rewards)


def require_reward_type(args: Any, sample: Sample, where: str) -> str:
    """Which reward that comes with slime is the sample's: metadata `rm_type`, or else --rm-type.

    Raises UserError, naming `where`, if it is none or the sample or the flags lack what it needs.
    """
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    name = metadata.get("rm_type") or args.rm_type
    if name is None:
        raise UserError(f"{where} has no metadata rm_type: give --rm-type or --custom-rm-path")
    if not isinstance(name, str) or name.strip() not in get_args(RewardType):
        plain = ", ".join(name for name in get_args(RewardType) if not name.startswith("boxed_"))
        raise UserError(f"{where}: metadata rm_type {name!r} is none of {plain}, with or without boxed_ in front")
    base = name.strip().removeprefix("boxed_")
    if base == "ifbench":
        raise UserError(f"{where}: {IFBENCH_MISSING}")
    if base == "remote_rm" and args.rm_url is None:
        raise UserError(f"{where}: the reward {name} needs --rm-url: where the reward model listens")
    if base in NEED_LABEL and sample.label is None:
        raise UserError(f"{where} has no label, which the reward {name} compares with (--label-key)")
    return name.strip()


def _function(args: Any, sample: Sample) -> str:
    """The reward function, as error lines name it."""
    if args.custom_rm_path is not None:
        return f"--custom-rm-path {args.custom_rm_path}"
    name = require_reward_type(args, sample, _describe(sample))
    flag = f"--rm-type {name}" if name == args.rm_type else f"{name} (metadata rm_type)"
    return f"{flag} at --rm-url {args.rm_url}" if name.endswith("remote_rm") else flag


async def _built_in(args: Any, sample: Sample) -> Any:
    name = require_reward_type(args, sample, _describe(sample))
    base, response = name.removeprefix("boxed_"), sample.response
    if base != name and base not in ("deepscaler", "dapo"):  # which look for the answer themselves
        answer = extract_answer(response)
        response = "" if answer is None else f"\\boxed{{{answer}}}" if base == "math" else answer
    if base in _MATHEMATICS:
        return await _mathematics(args, sample, base, response)
    if base == "remote_rm":
        return await remote_rm(args, sample, response)
    if base == "f1":
        return f1_score(response, sample.label)[0]
    if base == "gpqa":
        return compute_gpqa_reward(response, sample.label, sample.metadata)
    assert base == "random", base
    return random.Random(f"{args.rollout_seed} {sample.index} {response}").randint(0, 1)


async def _mathematics(args: Any, sample: Sample, base: str, response: str) -> Any:
    function, wrong = _MATHEMATICS[base]
    try:
        verdict = await judge(function, response, sample.label)
    except Unjudged as why:
        print(f"note: {_describe(sample)} could not be judged and counts as wrong: {why}", flush=True)
        verdict = wrong
    if base == "dapo":
        return verdict if args.reward_key is not None else verdict["score"]
    return float(verdict)


def _require_number(args: Any, sample: Sample, function: str, reward: Any) -> None:
    value = reward
    if args.reward_key is not None:
        if not isinstance(reward, dict) or args.reward_key not in reward:
            raise UserError(
                f"the reward of {_describe(sample)} has no entry --reward-key {args.reward_key!r}: {function} gave {reward!r}"
            )
        value = reward[args.reward_key]
    if isinstance(value, str) or not _is_finite_number(value):
        raise UserError(f"the reward function {function} returned {value!r}, no finite number, for {_describe(sample)}")


def _is_finite_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _describe(sample: Sample) -> str:
    return f"sample {sample.index} (prompt {str(sample.prompt)[-80:]!r}, response {sample.response[:80]!r})"
