"""Which transformers class a config means for each role, and what its architecture allows."""

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, PreTrainedModel
from transformers.modeling_layers import GenericForTokenClassification

from fsdp_backend.model.attention import PACKED

_ATTENTION = {"full_attention", "sliding_attention"}


def causal_lm_class(config: Any) -> type[PreTrainedModel]:
    """The language model of a config; raises ValueError if transformers has none."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"model type {config.model_type!r} is no causal language model")
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]  # type: ignore[no-any-return]


def token_classifier_class(config: Any) -> type[PreTrainedModel]:
    """The backbone with a head `score` or `classifier`: transformers' own class, or one made from its generic parts."""
    if type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        return MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(config)]  # type: ignore[no-any-return]
    causal = causal_lm_class(config)
    base = next(parent for parent in causal.__mro__ if PreTrainedModel in parent.__bases__)
    name = causal.__name__.replace("ForCausalLM", "ForTokenClassification")
    return type(name, (GenericForTokenClassification, base), {"base_model_prefix": causal.base_model_prefix})


def packs_samples(model_class: type[PreTrainedModel], config: Any) -> bool:
    """Whether samples can share a row: only attention mixes positions, and transformers lets it be exchanged for ours."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= _ATTENTION and not model_class._is_stateful and bool(model_class._supports_attention_backend)


def attention_for(model_class: type[PreTrainedModel], config: Any) -> str:
    """The `attn_implementation` to build with. A sample that has its row for itself needs no attention of ours."""
    if packs_samples(model_class, config):
        return PACKED
    return "sdpa" if model_class._supports_sdpa else "eager"


def require_exact(config: Any) -> None:
    """Raises ValueError for what would be read wrong, or would compute otherwise than one sample after another."""
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model type {config.model_type!r} comes with quantization_config: quantized weights are not read")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in ("dynamic", "longrope"):
        raise ValueError(f"rope_type {rope!r} depends on the longest sample of a row: not supported when packed")


def without_dropout(config: Any) -> None:
    """Dropout would make the log-probs of a forward differ from those of the next."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
