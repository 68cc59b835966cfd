"""Tiny models and batches."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from fsdp_backend.batch.columns import RolloutBatch

VOCABULARY = 40
_ARCHITECTURES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
}


def save_tiny_model(folder: Path, architecture: str = "qwen3", tied: bool = True, seed: int = 0, **config: Any) -> Path:
    """A causal language model of two layers with 32 hidden units, as a checkpoint folder without a tokenizer."""
    config_class, model_class, extra = _ARCHITECTURES[architecture]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        # Larger than usual, so that attention and logits are far from uniform.
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model_class(config_class(**{**settings, **extra, **config})).save_pretrained(folder)
    return folder


def random_batch(samples: int = 8, seed: int = 0, masked: bool = False, longest: int = 20) -> RolloutBatch:
    """Random prompts and responses of random lengths; `masked` puts holes into the loss masks."""
    draw = np.random.default_rng(seed)
    tokens = [draw.integers(0, VOCABULARY, size=draw.integers(4, longest)).tolist() for _ in range(samples)]
    lengths = [int(draw.integers(1, len(t) - 1)) for t in tokens]
    masks = [[int(not masked or draw.random() < 0.7) for _ in range(n)] for n in lengths]
    return RolloutBatch.from_samples(tokens, lengths, masks, draw.normal(size=samples).tolist())
