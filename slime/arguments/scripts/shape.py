"""Model-shape flags of Megatron: each must agree with what the checkpoint's config.json says, in its own words."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What a config says on the subject of a flag, and whether the flag's value agrees."""

    key: str
    value: Any
    agrees: bool


Check = Callable[[Config, str, Mapping[str, str]], Found | None]
"""(config, the flag's value, all shape-related flags given) -> what was found, or None where the config says nothing."""

_QK_NORM = frozenset({"qwen3", "qwen3_moe", "qwen3_next", "gemma3_text", "olmo2", "deepseek_v2", "deepseek_v3"})
_NO_QK_NORM = frozenset({"qwen2", "qwen2_moe", "llama", "mistral", "mixtral", "gemma", "gemma2", "phi3", "glm4"})
_QKV_BIAS = frozenset({"qwen2", "qwen2_moe"})
_SILU = ("silu", "swish")


def _keys(*names: str, absent: int | None = None) -> Check:
    """The first of these keys is a number that must be the flag's; `absent` is what a config without any of them means."""

    def check(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
        key = next((name for name in names if config.get(name) is not None), None)
        value = absent if key is None else config[key]
        return None if value is None else Found(key or names[0], value, _same(text, value))

    return check


def _same(text: str, value: Any) -> bool:
    return math.isclose(float(text), float(value), rel_tol=1e-9)


def _rope(name: str, absent: float | None = None) -> Check:
    """A number among the rotary settings, which stand in one of three places."""

    def check(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
        for place in (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
            if place.get(name) is not None:
                return Found(name, place[name], _same(text, place[name]))
        nested = any(isinstance(value, dict) for value in (config.get("rope_parameters") or {}).values())
        return None if absent is None or nested else Found(name, absent, _same(text, absent))

    return check


def _true(key: str, by_architecture: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())) -> Check:
    """A switch that a key of the config says too, or the model type: (those that have it, those that don't)."""

    def check(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
        if key in config:
            return Found(key, config[key], bool(config[key]))
        has, lacks = by_architecture
        name = config.get("model_type")
        return Found("model_type", name, name in has) if name in has | lacks else None

    return check


def _false(*keys: str) -> Check:
    """A switch whose opposite the first of these keys says."""

    def check(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
        key = next((name for name in keys if name in config), None)
        return None if key is None else Found(key, config[key], not config[key])

    return check


def _present(key: str) -> Check:
    """A switch for what an architecture has exactly if its config has this key."""
    return lambda config, text, given: Found(key, config.get(key), config.get(key) is not None)


def _head_width(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    if config.get("kv_lora_rank") is not None:  # latent attention: --qk-head-dim and --v-head-dim say it
        return None
    if config.get("head_dim") is not None:
        return Found("head_dim", config["head_dim"], _same(text, config["head_dim"]))
    if config.get("hidden_size") and config.get("num_attention_heads"):
        width = config["hidden_size"] / config["num_attention_heads"]
        return Found("hidden_size / num_attention_heads", width, _same(text, width))
    return None


def _vocabulary(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    """Megatron pads a vocabulary to a multiple of --make-vocab-size-divisible-by times its tensor-parallel size."""
    size = config.get("vocab_size")
    if size is None:
        return None
    multiple = int(given.get("make-vocab-size-divisible-by", "128")) * int(given.get("tensor-model-parallel-size", "1"))
    return Found("vocab_size", size, size <= int(text) <= math.ceil(size / multiple) * multiple)


def _activation(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    key = next((name for name in ("hidden_act", "hidden_activation", "activation_function") if config.get(name)), None)
    return None if key is None else Found(key, config[key], config[key] in _SILU)


def _normalization(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    for key, kind in (("rms_norm_eps", "RMSNorm"), ("layer_norm_eps", "LayerNorm")):
        if key in config:
            return Found(key, config[key], text == kind)
    return None


def _positions(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    key = next((name for name in ("rope_theta", "rope_parameters") if config.get(name)), None)
    return None if key is None else Found(key, config[key], text == "rope")


def _rope_kind(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = settings.get("rope_type", settings.get("type", "default"))
    return Found("rope_type", kind, kind == "llama3")


def _shared_width(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    if config.get("shared_expert_intermediate_size") is not None:
        return _keys("shared_expert_intermediate_size")(config, text, given)
    count, width = config.get("n_shared_experts"), config.get("moe_intermediate_size")
    if count is None or width is None:
        return None
    return Found("n_shared_experts * moe_intermediate_size", count * width, _same(text, count * width))


def _score_function(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    value = config.get("scoring_func")
    return None if value is None else Found("scoring_func", value, text == value)


def _expert_layers(config: Config, text: str, given: Mapping[str, str]) -> Found | None:
    """--moe-layer-freq N, or a pattern such as [0]*1+[1]*26 or [1,1,0]: 1 for a layer of experts."""
    layers = config.get("num_hidden_layers")
    if layers is None:
        return None
    if config.get("first_k_dense_replace") is not None:
        key, dense = "first_k_dense_replace", config["first_k_dense_replace"]
        actual = [int(i >= dense) for i in range(layers)]
    elif config.get("decoder_sparse_step") is not None:
        key, every, without = "decoder_sparse_step", config["decoder_sparse_step"], config.get("mlp_only_layers") or []
        actual = [int(i not in without and (i + 1) % every == 0) for i in range(layers)]
    else:
        return None
    pattern = _pattern(ast.parse(text, mode="eval").body)
    wanted = [int(i % pattern == 0) for i in range(layers)] if isinstance(pattern, int) else pattern
    return Found(key, config[key], wanted == actual)


def _pattern(node: ast.expr) -> Any:
    """The value of numbers, lists, + and *; ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 0:
        return node.value
    if isinstance(node, ast.List):
        return [ast.literal_eval(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        apply = operator.add if isinstance(node.op, ast.Add) else operator.mul
        return apply(_pattern(node.left), _pattern(node.right))
    raise ValueError("no number and no pattern of layers")


SWITCHES: dict[str, Check] = {
    "swiglu": _activation,
    "untie-embeddings-and-output-weights": _false("tie_word_embeddings"),
    "disable-bias-linear": _false("mlp_bias", "use_bias"),
    "qk-layernorm": _true("use_qk_norm", (_QK_NORM, _NO_QK_NORM)),
    "add-qkv-bias": _true("attention_bias", (_QKV_BIAS, frozenset())),
    "multi-latent-attention": _present("kv_lora_rank"),
    "use-rope-scaling": _rope_kind,
}
VALUED: dict[str, Check] = {
    "num-layers": _keys("num_hidden_layers", "n_layer"),
    "hidden-size": _keys("hidden_size", "n_embd"),
    "ffn-hidden-size": _keys("intermediate_size", "n_inner"),
    "num-attention-heads": _keys("num_attention_heads", "n_head"),
    "num-query-groups": _keys("num_key_value_heads", "num_attention_heads"),
    "kv-channels": _head_width,
    "vocab-size": _vocabulary,
    "normalization": _normalization,
    "norm-epsilon": _keys("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "position-embedding-type": _positions,
    "rotary-base": _rope("rope_theta"),
    "rotary-percent": _rope("partial_rotary_factor", absent=1.0),
    "rotary-scaling-factor": _rope("factor", absent=1.0),
    "rope-scaling-factor": _rope("factor", absent=1.0),
    "mscale": _rope("mscale"),
    "mscale-all-dim": _rope("mscale_all_dim"),
    "num-experts": _keys("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", absent=0),
    "moe-router-topk": _keys("num_experts_per_tok", "num_experts_per_token"),
    "moe-ffn-hidden-size": _keys("moe_intermediate_size", "intermediate_size"),
    "moe-shared-expert-intermediate-size": _shared_width,
    "moe-layer-freq": _expert_layers,
    "moe-router-score-function": _score_function,
    "moe-router-topk-scaling-factor": _keys("routed_scaling_factor"),
    "moe-router-num-groups": _keys("n_group"),
    "moe-router-group-topk": _keys("topk_group"),
    "q-lora-rank": _keys("q_lora_rank"),
    "kv-lora-rank": _keys("kv_lora_rank"),
    "qk-head-dim": _keys("qk_nope_head_dim"),
    "qk-pos-emb-head-dim": _keys("qk_rope_head_dim"),
    "v-head-dim": _keys("v_head_dim"),
}
CHECKS = SWITCHES | VALUED
"""Every model-shape flag, without its dashes, and what its value is held against."""
