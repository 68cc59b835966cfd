"""What does generating ahead of training bring, where rewards are slow and their time varies? Whole runs of `slime train`, a
tiny model and rewards that sleep: what can be won is all of the waiting, so one process will do."""

import asyncio
import json
import random
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from recipes.quickstart.tokenizer import build_tokenizer
from slime.cli import main
from slime.utils.types import Sample
from tests.bench.setting import Setting
from tests.bench.table import Row, fastest, rounds_of
from tests.bench.timing import alternate
from tests.tiny import save_tiny_model

ROLLOUTS = 8
WARM_UP = 3
"""Rollouts until the stream has its constant depth."""


def rows(setting: Setting) -> list[Row]:
    """Rollouts an hour, one ahead and streaming, against one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder), setting.generation_seconds / 3)
        now, ahead, stream = alternate(setting.rounds, *(lambda n=n: _rollout_seconds(Path(folder), n) for n in (0, 1, 4)))
    return [_row(1, ahead, now), _row(4, stream, now)]


def _row(staleness: int, seconds: list[float], without: list[float]) -> Row:
    name, rounds = f"rollouts an hour, --max-staleness {staleness} / 0", rounds_of(seconds, without)
    ratio = fastest(without) / fastest(seconds)
    return Row(name, 3600 / fastest(seconds), 3600 / fastest(without), ratio, "> 1", unit="1/h", rounds=rounds)


async def slow_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Takes long for one response in ten, little for the others."""
    seconds = json.loads((Path(args.hf_checkpoint) / "seconds.json").read_text())
    await asyncio.sleep(seconds * (1.0 if random.Random(sample.index).random() < 0.1 else 0.1))
    return float(sample.response_length)


def _prepare(folder: Path, seconds: float) -> None:
    tokenizer = build_tokenizer()
    save_tiny_model(folder, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    tokenizer.save_pretrained(folder)
    (folder / "seconds.json").write_text(json.dumps(seconds))
    (folder / "prompts.jsonl").write_text('{"input": "one"}\n{"input": "seven"}\n')


def _rollout_seconds(folder: Path, staleness: int) -> float:
    """Median over the rollouts after the first few."""
    words = [
        "train",
        "--launcher",
        "local",
        "--hf-checkpoint",
        str(folder),
        "--prompt-data",
        str(folder / "prompts.jsonl"),
        "--apply-chat-template",
    ]
    words += ["--rollout-batch-size", "16", "--rollout-max-response-len", "8", "--num-rollout", str(ROLLOUTS)]
    words += ["--custom-rm-path", "tests.bench.staleness.slow_reward", "--max-staleness", str(staleness)]
    shutil.rmtree(folder / "run", ignore_errors=True)
    if main([*words, "--run-dir", str(folder / "run")]):
        raise RuntimeError(f"slime {' '.join(words)} failed")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return float(median(json.loads(line)["time/rollout"] for line in lines[WARM_UP:]))
