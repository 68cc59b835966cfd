"""Does anything wait for the critic's second pass? Whole runs of `slime train` under Ray: the critic has a rank of its own, and
generation happens on devices that are not this machine's: it sleeps."""

import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from recipes.quickstart.tokenizer import build_tokenizer
from slime.cli import main
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.utils.types import Sample
from tests.bench.setting import Setting, make_batch, save_model
from tests.bench.table import Row, fastest, rounds_of
from tests.bench.timing import alternate

ROLLOUTS = 5
DATA = "made_up.json"


def rows(setting: Setting) -> list[Row]:
    """Wall time of a rollout with K = 2, against K = 1."""
    with tempfile.TemporaryDirectory() as folder:
        _prepare(setting, Path(folder))
        two, one = alternate(
            setting.rounds, lambda: _rollout_seconds(Path(folder), 2), lambda: _rollout_seconds(Path(folder), 1)
        )
    ratio = fastest(two) / fastest(one)
    return [
        Row("rollout with K = 2 / K = 1, critic apart", fastest(two), fastest(one), ratio, "≤ 1.05", rounds=rounds_of(two, one))
    ]


def made_up_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """The same samples every time, after as long as the setting says that generation takes."""
    content = json.loads((Path(args.hf_checkpoint) / DATA).read_text())
    time.sleep(content["seconds"])
    groups = data_source.get_samples(args.rollout_batch_size)
    for (sample,), made_up in zip(groups, content["samples"], strict=True):
        sample.tokens, sample.response_length = made_up["tokens"], made_up["response_length"]
        sample.reward, sample.status = made_up["reward"], Sample.Status.COMPLETED
    return RolloutFnTrainOutput(groups)


def _prepare(setting: Setting, folder: Path) -> None:
    save_model(setting.small(str(folder)))
    build_tokenizer().save_pretrained(folder)
    batch = make_batch(setting.small(str(folder)))
    samples = [
        {"tokens": batch.tokens[a:b].tolist(), "response_length": int(n), "reward": float(r)}
        for a, b, n, r in zip(batch.token_offsets, batch.token_offsets[1:], batch.response_lengths, batch.reward, strict=False)
    ]
    content = {"seconds": setting.generation_seconds, "longest": setting.responses.longest, "samples": samples}
    (folder / DATA).write_text(json.dumps(content))
    (folder / "prompts.jsonl").write_text('{"input": "any"}\n')


def _rollout_seconds(folder: Path, k: int) -> float:
    """Median over the rollouts that have one before and one after them."""
    content = json.loads((folder / DATA).read_text())
    words = ["train", "--hf-checkpoint", str(folder), "--prompt-data", str(folder / "prompts.jsonl")]
    words += ["--rollout-batch-size", str(len(content["samples"])), "--rollout-max-response-len", str(content["longest"])]
    words += ["--num-rollout", str(ROLLOUTS), "--critic-update-steps", str(k)]
    words += [
        "--rollout-function-path",
        "tests.bench.overlap.made_up_rollout",
        "--custom-rm-path",
        "tests.bench.overlap.unused",
    ]
    words += ["--use-dynamic-batch-size", "--max-tokens-per-gpu", "2048", "--run-dir", str(folder / "run")]
    shutil.rmtree(folder / "run", ignore_errors=True)
    if main(words):
        raise RuntimeError(f"slime {' '.join(words)} failed")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return float(median(json.loads(line)["time/rollout"] for line in lines[1:-1]))


def unused(*_: Any) -> None:
    """The samples bring their rewards."""
