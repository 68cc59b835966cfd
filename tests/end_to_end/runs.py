"""Small runs of the real command line."""

import asyncio
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from recipes.quickstart.tokenizer import build_tokenizer
from slime.cli import main
from slime.rollout.sglang_rollout import generate
from slime.utils.types import Sample
from tests.tiny import save_tiny_model

FAVOURITE = "e"


async def likes_one_letter(args: Any, sample: Sample, **kwargs: Any) -> float:
    """The share of the response that is the favourite letter."""
    return sample.response.count(FAVOURITE) / max(sample.response_length, 1)


async def takes_its_time(args: Any, sample: Sample, **kwargs: Any) -> float:
    """The same, half a second later."""
    await asyncio.sleep(0.5)
    return await likes_one_letter(args, sample)


async def begins_late(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Asks the engine after longer than a rollout is trained on."""
    await asyncio.sleep(2.0)
    return await generate(args, sample, sampling_params)


async def fails_on_sample_five(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Raises once."""
    if sample.index == 5:
        raise KeyError("no such answer")
    return 0.0


async def is_not_a_number(args: Any, sample: Sample, **kwargs: Any) -> float:
    """NaN once."""
    return float("nan") if sample.index == 3 else 0.0


def make_inputs(folder: Path) -> Path:
    """A model with a tokenizer in folder/model, and prompts in folder/prompts.jsonl and folder/messages.jsonl."""
    tokenizer = build_tokenizer()
    save_tiny_model(
        folder / "model", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    tokenizer.save_pretrained(folder / "model")
    words = ["one", "three", "seven", "eleven", "twelve", "five", "nine", "ten"]
    rows = [{"input": word, "label": word[::-1]} for word in words]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    messages = [[{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}] for word in words]
    (folder / "messages.jsonl").write_text("".join(json.dumps({"input": m}) + "\n" for m in messages))
    return folder


def ppo_flags(inputs: Path, run_dir: Path, *extra: str) -> list[str]:
    """A PPO run of three rollouts with K = 2, in one process."""
    flags = ["train", "--launcher", "local", "--num-rollout", "3", "--hf-checkpoint", str(inputs / "model")]
    flags += ["--prompt-data", str(inputs / "prompts.jsonl"), "--apply-chat-template", "--rollout-shuffle"]
    flags += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "6"]
    flags += ["--custom-rm-path", "tests.end_to_end.runs.likes_one_letter", "--critic-update-steps", "2"]
    flags += ["--lr", "1e-3", "--critic-lr", "3e-3", "--global-batch-size", "4", "--run-dir", str(run_dir)]
    return [*flags, *extra]


def run(flags: list[str]) -> int:
    """The exit status of `slime` with these words."""
    return main(flags)


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def assert_same_outcome(one: Path, other: Path, rollouts: int) -> None:
    """That two runs in folder/run, saved to folder/state, left the same metrics, models and training state, bit for bit."""
    assert repeatable(metrics_of(one / "run")) == repeatable(metrics_of(other / "run"))
    for role in ("actor", "critic"):
        weights, same = (folder / "run" / "checkpoints" / "latest" / role / "model.safetensors" for folder in (one, other))
        assert weights.read_bytes() == same.read_bytes()
    for file in sorted((one / "state" / f"rollout_{rollouts - 1:06d}").rglob("*.safetensors")):
        state, same_state = load_file(file), load_file(other / "state" / file.relative_to(one / "state"))
        assert state.keys() == same_state.keys()
        assert all(torch.equal(tensor, same_state[name]) for name, tensor in state.items()), file


def repeatable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a clock measured, and without the engine's last bits, which depend on which requests meet in it."""
    left_out = ("time/", "perf/", "train/train_rollout_logprob_abs_diff")
    return [{name: value for name, value in row.items() if not name.startswith(left_out)} for row in rows]
