"""Model-shape flags against the checkpoint's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from slime.arguments.errors import UserError
from slime.arguments.scripts.read import NO_COUNTERPART, check_shape, take
from slime.arguments.scripts.shape import CHECKS
from tests.slime.arguments.command_lines import refusal, required
from tests.slime.arguments.scripts.launches import (
    MOONLIGHT,
    QWEN3_4B,
    QWEN3_30B_A3B,
    QWEN25_7B,
    SHAPE_MOONLIGHT,
    checkpoint_of,
)

LLAMA31: dict[str, Any] = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
GEMMA: dict[str, Any] = {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
FIVE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    "use_qk_norm": True,
    "layer_norm_eps": 1e-5,
}
"""As transformers 5 writes rotary settings."""


def outcome(config: dict[str, Any], flags: str, folder: Path) -> str:
    """What becomes of flags: agrees, aside, or where the config says otherwise."""
    _, script = take(flags.split())
    try:
        told = check_shape(script, checkpoint_of(config, folder))
    except UserError as error:
        return str(error).partition(", where ")[2] or str(error)
    return "agrees" if told.checked else "aside"


AGREES = [
    (QWEN3_4B, "--num-layers 36"),
    (QWEN3_4B, "--rotary-base 1e6"),
    (QWEN3_4B, "--norm-epsilon 0.000001"),
    (QWEN3_4B, "--rotary-percent 1.0"),
    (QWEN25_7B, "--add-qkv-bias"),
    (QWEN25_7B, "--kv-channels 128"),
    (QWEN25_7B, "--vocab-size 152064"),
    (LLAMA31, "--disable-bias-linear"),
    (LLAMA31, "--use-rope-scaling"),
    (LLAMA31, "--rope-scaling-factor 8"),
    (FIVE, "--rotary-base 1000000"),
    (FIVE, "--rotary-percent 0.5"),
    (FIVE, "--rotary-scaling-factor 1"),
    (FIVE, "--qk-layernorm"),
    (FIVE, "--position-embedding-type rope"),
    (FIVE, "--normalization LayerNorm"),
    (QWEN3_30B_A3B, "--moe-layer-freq 1"),
    (MOONLIGHT, "--multi-latent-attention"),
    (MOONLIGHT, "--moe-layer-freq [0]*1+[1]*26"),
    (MOONLIGHT, f"--moe-layer-freq [0,{','.join(['1'] * 26)}]"),
    (MOONLIGHT, "--moe-router-score-function sigmoid"),
    ({"text_config": QWEN3_4B, "num_hidden_layers": 5}, "--num-layers 36"),
]
DISAGREES = [
    (QWEN3_4B, "--num-layers 28", "num_hidden_layers is 36"),
    (QWEN3_4B, "--hidden-size 2048", "hidden_size is 2560"),
    (QWEN3_4B, "--ffn-hidden-size 9729", "intermediate_size is 9728"),
    (QWEN3_4B, "--num-attention-heads 16", "num_attention_heads is 32"),
    (QWEN3_4B, "--num-query-groups 4", "num_key_value_heads is 8"),
    (QWEN3_4B, "--kv-channels 80", "head_dim is 128"),
    (QWEN3_4B, "--norm-epsilon 1e-5", "rms_norm_eps is 1e-06"),
    (QWEN3_4B, "--normalization LayerNorm", "rms_norm_eps is 1e-06"),
    (QWEN3_4B, "--rotary-base 10000", "rope_theta is 1000000"),
    (QWEN3_4B, "--rotary-percent 0.5", "partial_rotary_factor is 1.0"),
    (QWEN3_4B, "--untie-embeddings-and-output-weights", "tie_word_embeddings is True"),
    (QWEN3_4B, "--add-qkv-bias", "attention_bias is False"),
    (QWEN3_4B, "--num-experts 128", "num_experts is 0"),
    (QWEN3_4B, "--multi-latent-attention", "kv_lora_rank is None"),
    (QWEN3_4B, "--use-rope-scaling", "rope_type is default"),
    (QWEN3_4B, "--position-embedding-type learned_absolute", "rope_theta is 1000000"),
    (QWEN25_7B, "--qk-layernorm", "model_type is qwen2"),
    (QWEN25_7B, "--kv-channels 64", "hidden_size / num_attention_heads is 128.0"),
    (LLAMA31 | {"mlp_bias": True}, "--disable-bias-linear", "mlp_bias is True"),
    (LLAMA31, "--rotary-scaling-factor 4", "factor is 8.0"),
    (GEMMA, "--swiglu", "hidden_activation is gelu_pytorch_tanh"),
    (FIVE, "--normalization RMSNorm", "layer_norm_eps is 1e-05"),
    (QWEN3_30B_A3B, "--num-experts 64", "num_experts is 128"),
    (QWEN3_30B_A3B, "--moe-router-topk 6", "num_experts_per_tok is 8"),
    (QWEN3_30B_A3B, "--moe-ffn-hidden-size 6144", "moe_intermediate_size is 768"),
    (QWEN3_30B_A3B, "--moe-layer-freq 2", "decoder_sparse_step is 1"),
    (QWEN3_30B_A3B | {"mlp_only_layers": [0]}, "--moe-layer-freq [1]*48", "decoder_sparse_step is 1"),
    (MOONLIGHT, "--moe-layer-freq [0]*2+[1]*25", "first_k_dense_replace is 1"),
    (MOONLIGHT, "--moe-shared-expert-intermediate-size 1408", "n_shared_experts * moe_intermediate_size is 2816"),
    (MOONLIGHT, "--moe-router-score-function softmax", "scoring_func is sigmoid"),
    (MOONLIGHT, "--moe-router-topk-scaling-factor 1.0", "routed_scaling_factor is 2.446"),
    (MOONLIGHT, "--kv-lora-rank 256", "kv_lora_rank is 512"),
    (MOONLIGHT, "--qk-head-dim 64", "qk_nope_head_dim is 128"),
    (MOONLIGHT, "--v-head-dim 64", "v_head_dim is 128"),
]
ASIDE = [
    (QWEN3_4B, "--disable-bias-linear"),
    (QWEN3_4B, "--moe-router-score-function softmax"),
    (QWEN3_4B, "--q-lora-rank 1536"),
    (MOONLIGHT, "--kv-channels 192"),
    (MOONLIGHT, "--mscale 1.0"),
    (GEMMA, "--num-layers 3"),
    ({"model_type": "new"}, "--qk-layernorm"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "--rotary-percent 1.0"),
]


@pytest.mark.parametrize(("config", "flags"), AGREES)
def test_flags_that_say_what_the_config_says_agree(config: dict[str, Any], flags: str, tmp_path: Path) -> None:
    assert outcome(config, flags, tmp_path / "model") == "agrees"


@pytest.mark.parametrize(("config", "flags", "message"), DISAGREES)
def test_flags_that_say_something_else_are_named_with_the_configs_own_key(
    config: dict[str, Any], flags: str, message: str, tmp_path: Path
) -> None:
    assert outcome(config, flags, tmp_path / "model") == message


@pytest.mark.parametrize(("config", "flags"), ASIDE)
def test_flags_without_a_counterpart_are_set_aside(config: dict[str, Any], flags: str, tmp_path: Path) -> None:
    assert outcome(config, flags, tmp_path / "model") == "aside"


@pytest.mark.parametrize(
    ("flags", "agrees"),
    [
        ("--vocab-size 151936", True),
        ("--vocab-size 151935", False),
        ("--vocab-size 151937", False),
        ("--vocab-size 152064", False),
        ("--vocab-size 152064 --make-vocab-size-divisible-by 1024", True),
        ("--vocab-size 152576 --make-vocab-size-divisible-by 1024", True),
        ("--vocab-size 152577 --make-vocab-size-divisible-by 1024", False),
        ("--vocab-size 152064 --tensor-model-parallel-size 8", True),
    ],
)
def test_a_vocabulary_may_be_padded_as_megatron_pads_it(flags: str, agrees: bool, tmp_path: Path) -> None:
    # 151936 is a multiple of 128; the next multiple of 1024 is 152576, which 8 * 128 allows as well.
    assert outcome(QWEN3_4B, flags, tmp_path / "model") == ("agrees" if agrees else "vocab_size is 151936")


@pytest.mark.parametrize(
    "flags", ["--num-layers many", "--moe-layer-freq print(1)", "--moe-layer-freq [", "--moe-layer-freq 0"]
)
def test_a_value_that_says_nothing_is_named(flags: str, tmp_path: Path) -> None:
    message = outcome(MOONLIGHT, flags, tmp_path / "model")
    assert message == f"{flags} can't be held against {tmp_path / 'model' / 'config.json'}: bad value"


def test_a_run_is_refused_for_its_shape_with_flag_file_and_key(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    message = f"--num-layers 3 disagrees with {checkpoint}/config.json, where num_hidden_layers is 2"
    assert refusal([*required(checkpoint), "--num-layers", "2", "--num-layers", "3"]) == message


def test_the_reason_is_told(tmp_path: Path) -> None:
    told = check_shape(take(SHAPE_MOONLIGHT.split())[1], checkpoint_of(MOONLIGHT, tmp_path / "model"))
    assert told.set_aside == tuple(
        (flag, NO_COUNTERPART)
        for flag in ("--disable-bias-linear", "--kv-channels 128", "--mscale 1.0", "--mscale-all-dim 1.0")
    )


def test_every_check_is_tried_here() -> None:
    tried_flags = [*(flags for _, flags in AGREES + ASIDE), *(flags for _, flags, _ in DISAGREES), SHAPE_MOONLIGHT]
    tried = {word[2:] for flags in tried_flags for word in flags.split() if word.startswith("--")}
    assert set(CHECKS) - tried - {"vocab-size"} == set()
