"""Attention over a packed row: each sample attends to itself only.

One causal SDPA a sample: no mask is built and no token is padded. It is exact on every device, and on a CPU faster than a
block-diagonal mask.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED = "packed_varlen"
"""The `attn_implementation` under which transformers finds this attention."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sample_lengths: tuple[int, ...],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The signature transformers calls. query [1, heads, T, D], key and value [1, kv heads, T, D]; returns [1, T, heads, D].

    `sample_lengths` sum to T and travel from `model(..., sample_lengths=...)`. Raises ValueError for what it can't do exactly.
    """
    if unused.get("softcap") is not None or unused.get("s_aux") is not None:
        raise ValueError(f"{type(module).__name__} caps its attention logits or has attention sinks: not supported when packed")
    if attention_mask is not None or not unused.get("is_causal", getattr(module, "is_causal", True)):
        raise ValueError(f"{type(module).__name__} does not attend causally: not supported when packed")
    outputs = []
    grouped = query.shape[1] != key.shape[1]
    parts = (torch.split(x, list(sample_lengths), dim=2) for x in (query, key, value))
    for q, k, v in zip(*parts, strict=True):
        window = _window_mask(q.shape[2], sliding_window, q.device)
        outputs.append(
            scaled_dot_product_attention(q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=grouped)
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _window_mask(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """[length, length] True where a token may look: itself and the sliding_window - 1 before it. None: all before it."""
    if sliding_window is None or length <= sliding_window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - sliding_window)


AttentionInterface.register(PACKED, packed_attention)
