"""A made-up run's metrics, for the tests of the report."""

import json
import math
from pathlib import Path

Row = dict[str, float | None]


def full_row(rollout: int) -> Row:
    """Return what one rollout of PPO with two critic passes writes, evaluation included."""
    row: Row = {
        "rollout": rollout,
        "rollout/reward": 0.1 * rollout,
        "rollout/response_length": 100 + rollout,
        "rollout/truncated": 0.05,
        "train/train_rollout_logprob_abs_diff": 0.004,
        "eval/gsm8k/reward": 0.2 + 0.1 * rollout,
        "eval/gsm8k/response_length": 90,
        "eval/svamp/reward": 0.5,
        "train/ppo_kl": 0.001,
        "train/kl_loss": 0.02,
        "train/entropy": 0.5,
        "train/pg_clipfrac": 0.02,
        "train/grad_norm": 1.5,
        "train/lr": 1e-6,
        "train/skipped_steps": 0,
        "train/critic-lr": 1e-5,
        "train/critic-skipped_steps": 0,
        "time/generate": 10,
        "time/critic_update": 5,
        "time/rollout": 20,
        "perf/tokens_per_second": 1500,
    }
    for k in (1, 2):
        row[f"train/critic-pass_{k}/explained_variance_before"] = -3 * math.exp(-rollout)
        row[f"train/critic-pass_{k}/explained_variance_after"] = 0.1 * (rollout + k)
        row[f"train/critic-pass_{k}/value_loss"] = 0.3 / k
        row[f"train/critic-pass_{k}/grad_norm"] = 200
    return row


def write_run(run_dir: Path, rows: list[Row], config: str = "critic_passes: 2\n") -> None:
    """Write the two files a report is made from."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "config.yaml").write_text(config)
