"""Tiny models and batches."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fsdp_backend.batch.columns import RolloutBatch

VOCABULARY = 40
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 8},
    "qwen2": {},
    "llama": {},
    "gemma": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, **_EXPERTS},
    "mixtral": {"num_local_experts": 4, **_EXPERTS},
    "qwen3_next": {
        "head_dim": 8,
        "num_experts": 4,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
        **_EXPERTS,
        **_HYBRID,
    },
    "mamba": {"state_size": 4},
    "bloom": {"n_layer": 2, "n_head": 4},
}
"""What each model type needs besides the common settings."""


def save_tiny_model(folder: Path, architecture: str = "qwen3", tied: bool = True, seed: int = 0, **config: Any) -> Path:
    """A causal language model of two layers with 32 hidden units, as a checkpoint folder without a tokenizer."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        # Larger than usual, so that attention and logits are far from uniform.
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    settings = {**settings, **ARCHITECTURES[architecture], **config}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings)).save_pretrained(folder)
    return folder


def random_batch(samples: int = 8, seed: int = 0, masked: bool = False, longest: int = 20) -> RolloutBatch:
    """Random prompts and responses of random lengths; `masked` puts holes into the loss masks."""
    draw = np.random.default_rng(seed)
    tokens = [draw.integers(0, VOCABULARY, size=draw.integers(4, longest)).tolist() for _ in range(samples)]
    lengths = [int(draw.integers(1, len(t) - 1)) for t in tokens]
    masks = [[int(not masked or draw.random() < 0.7) for _ in range(n)] for n in lengths]
    return RolloutBatch.from_samples(tokens, lengths, masks, draw.normal(size=samples).tolist())
