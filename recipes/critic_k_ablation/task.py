"""The task, its reward, and a small model that knows the form of an answer and nothing of its worth.

A prompt is a stake, one digit; an answer is 32 letters, and each is worth more the later it stands in the alphabet. The reward
is the stake times the mean worth, and comes after the last letter: how much of it was the stake, how much was luck, and which
letters earned it is for the critic to find out.

python -m recipes.critic_k_ablation.task FOLDER
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from recipes.quickstart.prepare import make_model
from slime.utils.types import Sample

LETTERS = "abcdefgh"
LENGTH = 32
STAKES = range(1, 10)
SIZES = {"sft": 2048, "train": 4096}


async def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """The stake (1 to 9) over 9, times the mean worth of a whole answer's letters: from 0 for a to 1 for h. What goes beyond
    a whole answer does not count."""
    worth = sum(LETTERS.index(letter) for letter in sample.response[:LENGTH] if letter in LETTERS) / (len(LETTERS) - 1)
    return int(sample.label) / STAKES[-1] * worth / LENGTH


def main() -> None:
    """Write sft.jsonl, train.jsonl and model/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    for name, size in SIZES.items():
        rows = [_row(draw) for _ in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(folder / "model", seed=1, hidden_size=64)


def _row(draw: random.Random) -> dict[str, Any]:
    stake, answer = str(draw.choice(STAKES)), "".join(draw.choices(LETTERS, k=LENGTH))
    messages = [{"role": "user", "content": stake}, {"role": "assistant", "content": answer}]
    return {"prompt": stake, "answer": stake, "messages": messages}


if __name__ == "__main__":
    main()
