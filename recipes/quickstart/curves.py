"""Draws the held-out reward of several quickstart runs into one picture.

python -m recipes.quickstart.curves PICTURE.svg RUN_FOLDER [RUN_FOLDER …]
"""

import argparse
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import yaml

from slime.observability.writers import ROLLOUT_KEY, read_metrics

METRIC = "eval/heldout/reward"


def main() -> None:
    """Write the picture, and print its numbers as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    matplotlib.rcParams["svg.hashsalt"] = "quickstart"
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for run in arguments.runs:
        seed = yaml.safe_load((run / "ppo" / "config.yaml").read_text())["seed"]
        rows = [row for row in read_metrics(run / "ppo" / "metrics.jsonl") if METRIC in row]
        axes.plot([row[ROLLOUT_KEY] for row in rows], [row[METRIC] for row in rows], marker="o", label=f"seed {seed}")
        print(f"| {seed} | " + " | ".join(f"{row[METRIC]:.2f}" for row in rows) + " |")
    axes.set(xlabel="rollouts of PPO (0: where supervised training left it)", ylabel="held-out reward", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
