"""Managers of small runs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig
from slime.arguments.groups import DataArgs, EvalArgs, RewardArgs, RolloutArgs
from slime.arguments.parse import parse_arguments
from slime.arguments.run_config import RunConfig
from slime.rollout.manager import RolloutManager
from slime.rollout.reward_shaping import post_processed_rewards
from slime.rollout.to_batch import require_trainable, to_batch
from slime.utils.types import Sample

PLUGINS = "tests.slime.rollout.plugins"
ROWS = [{"question": text, "answer": str(i)} for i, text in enumerate(["one?", "two?", "three?", "four?", "five?", "six?"])]


def default_args(**changes: Any) -> SimpleNamespace:
    """What turning samples into a batch reads of `args`: the flags' defaults, but for these."""
    sections = (PPOConfig(), DataArgs(), RolloutArgs(rollout_batch_size=4), RewardArgs(), EvalArgs())
    defaults = {name: value for section in sections for name, value in asdict(section).items()}
    derived = {"rewards_normalization": True, "grpo_std_normalization": True, "rollout_engine_urls": []}
    return SimpleNamespace(**{**defaults, **derived, **changes})


def batch_of(args: SimpleNamespace, samples: Sequence[Sample]) -> RolloutBatch:
    """The batch with the rewards that the flags make of those the samples got."""
    require_trainable(args, samples)
    return to_batch(args, samples, post_processed_rewards(args, samples)[1])


def write_prompts(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    """A .jsonl file of prompts."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (ROWS if rows is None else rows)))
    return file


def config(model: Path, prompts: Path | str, *flags: str) -> RunConfig:
    """Two prompts a rollout, two responses of at most 8 tokens each, worth their length."""
    words = f"--hf-checkpoint {model} --prompt-data {prompts} --num-rollout 2 --rollout-batch-size 2 --n-samples-per-prompt 2"
    words += f" --input-key question --label-key answer --rollout-max-response-len 8 --custom-rm-path {PLUGINS}.length_reward"
    return parse_arguments([*words.split(), *flags])


def manager(model: Path, prompts: Path | str, *flags: str) -> RolloutManager:
    """The manager of such a run."""
    return RolloutManager(config(model, prompts, *flags))
