"""Managers of small runs."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fsdp_backend.config import PPOConfig
from slime.arguments.groups import RewardArgs
from slime.arguments.parse import parse_arguments
from slime.arguments.run_config import RunConfig
from slime.rollout.manager import RolloutManager

PLUGINS = "tests.slime.rollout.plugins"
ROWS = [{"question": text, "answer": str(i)} for i, text in enumerate(["one?", "two?", "three?", "four?", "five?", "six?"])]


def default_args(**changes: Any) -> SimpleNamespace:
    """What turning samples into a batch reads of `args`: the flags' defaults, but for these."""
    defaults = asdict(PPOConfig()) | asdict(RewardArgs()) | {"rewards_normalization": True, "grpo_std_normalization": True}
    return SimpleNamespace(**{**defaults, **changes})


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
