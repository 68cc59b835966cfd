"""Makes what the recipe trains on: questions of arithmetic, clumsy demonstrations, and a small Qwen3 that knows nothing yet.

python -m recipes.tool_use.prepare FOLDER [--seed N]
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from recipes.quickstart.prepare import make_model
from recipes.tool_use.calculator import CALL, END, calculate

WORDS = {"+": "plus", "-": "minus", "*": "times"}
SIZES = {"sft": 4096, "train": 2048, "heldout": 128}
MISTAKES = 0.15
"""Share of wrong digits in a demonstration's call and answer: imitation learns them too, and PPO has to unlearn them."""


def main() -> None:
    """Write sft.jsonl, train.jsonl, heldout.jsonl (no question in two of them) and model/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = draw_rows(sum(SIZES.values()), arguments.seed)
    for name, size in SIZES.items():
        part, rows = rows[:size], rows[size:]
        (arguments.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    make_model(arguments.folder / "model", arguments.seed)


def draw_rows(size: int, seed: int) -> list[dict[str, Any]]:
    """Each question once, with its answer, and as messages with a demonstration."""
    draw = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < size:
        one, operator, other = draw.randrange(1000), draw.choice("+-*"), draw.randrange(100)
        prompt, call = f"{one} {WORDS[operator]} {other}", f"{one}{operator}{other}{CALL}"
        if prompt in rows:
            continue
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": demonstration(call, draw)}]
        rows[prompt] = {"prompt": prompt, "answer": calculate(call), "messages": messages}
    return list(rows.values())


def demonstration(call: str, draw: random.Random) -> str:
    """A call with mistakes, what the calculator says to it, and that copied with mistakes."""
    made = with_mistakes(call, draw)
    answer = calculate(made)
    return f"{made}{answer}{END}{with_mistakes(answer, draw)}"


def with_mistakes(text: str, draw: random.Random) -> str:
    """With some of its digits replaced by any digit."""
    return "".join(draw.choice("0123456789") if each.isdigit() and draw.random() < MISTAKES else each for each in text)


if __name__ == "__main__":
    main()
