"""Makes what the quickstart trains on: prompts from reasoning-gym, and a small Qwen3 that knows nothing yet.

python -m recipes.quickstart.prepare FOLDER [--seed N]
"""

import argparse
import json
import random
import string
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from recipes.quickstart.tokenizer import build_tokenizer

TASK = "spell_backward"
WORD_LENGTHS = {"min_word_len": 3, "max_word_len": 6}
SIZES = {"sft": 1536, "train": 1536, "heldout": 128}
MISTAKES = 0.3
"""Share of wrong letters in the warm-up's answers: imitation learns them too, and PPO has to unlearn them."""


def main() -> None:
    """Write sft.jsonl, train.jsonl, heldout.jsonl (no prompt in two of them) and model/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = draw_rows(sum(SIZES.values()), arguments.seed)
    for name, size in reversed(SIZES.items()):
        part, rows = rows[:size], rows[size:]
        (arguments.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    make_model(arguments.folder / "model", arguments.seed)


def draw_rows(size: int, seed: int) -> list[dict[str, Any]]:
    """Each prompt once, with its answer, and as messages with an imperfect one."""
    rows: dict[str, dict[str, Any]] = {}
    draw = random.Random(seed)
    for entry in reasoning_gym.create_dataset(TASK, size=20 * size, seed=seed, **WORD_LENGTHS):
        question, answer = entry["question"], entry["answer"]
        if question in rows:
            continue
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": with_mistakes(answer, draw)}]
        rows[question] = {"prompt": question, "answer": answer, "messages": messages, "metadata": {"task": TASK}}
        if len(rows) == size:
            return list(rows.values())
    raise ValueError(f"{TASK} has no {size} different prompts, only {len(rows)}")


def with_mistakes(answer: str, draw: random.Random) -> str:
    """The answer with some letters replaced by any letter."""
    return "".join(draw.choice(string.ascii_lowercase) if draw.random() < MISTAKES else letter for letter in answer)


def make_model(folder: Path, seed: int, hidden_size: int = 128) -> None:
    """A Qwen3 of two layers with random weights, with its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
