"""Attention over a packed row: each sample attends to itself only.

The varlen kernel where the device has one for the dtype; else one causal SDPA a sample, which on a CPU is faster than a
block-diagonal mask. No mask is built and no token is padded.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from fsdp_backend import device
from fsdp_backend.batch.packing import Pack

PACKED = "packed_varlen"
"""The `attn_implementation` under which transformers finds this attention."""


def hidden_states(hf: Any, pack: Pack) -> Tensor:
    """[T, H] the backbone's last hidden states of a row; a row of several samples only for a model built with PACKED."""
    if hf.config._attn_implementation == PACKED:
        samples = {"sample_lengths": pack.sample_lengths, "sample_starts": pack.sample_starts}
        output = hf.base_model(input_ids=pack.input_ids, position_ids=pack.position_ids, use_cache=False, **samples)
    else:
        assert len(pack.sample_lengths) == 1, "this architecture mixes the positions of a row"
        output = hf.base_model(input_ids=pack.input_ids, use_cache=False)
    return output.last_hidden_state[0]  # type: ignore[no-any-return]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sample_lengths: tuple[int, ...],
    sample_starts: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The signature transformers calls. query [1, heads, T, D], key and value [1, kv heads, T, D]; returns [1, T, heads, D].

    `sample_lengths` sum to T; they and `sample_starts` [n + 1] travel through the model's forward. Raises ValueError for what
    it can't do exactly.
    """
    if unused.get("softcap") is not None or unused.get("s_aux") is not None:
        raise ValueError(f"{type(module).__name__} caps its attention logits or has attention sinks: not supported when packed")
    if attention_mask is not None or not unused.get("is_causal", getattr(module, "is_causal", True)):
        raise ValueError(f"{type(module).__name__} does not attend causally: not supported when packed")
    grouped = query.shape[1] != key.shape[1]
    if device.has_varlen_attention(query):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        looking_back = (-1 if sliding_window is None else sliding_window - 1, 0)
        bounds = (sample_starts, sample_starts, max(sample_lengths), max(sample_lengths))
        mixed: Any = varlen_attn(q, k, v, *bounds, scale=scaling, window_size=looking_back, enable_gqa=grouped)
        return mixed.unsqueeze(0), None
    outputs = []
    parts = (torch.split(x, list(sample_lengths), dim=2) for x in (query, key, value))
    for q, k, v in zip(*parts, strict=True):
        window = _window_mask(q.shape[2], sliding_window, q.device)
        outputs.append(
            scaled_dot_product_attention(q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=grouped)
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _window_mask(length: int, sliding_window: int | None, where: torch.device) -> Tensor | None:
    """[length, length] True where a token may look: itself and the sliding_window - 1 before it. None: all before it."""
    if sliding_window is None or length <= sliding_window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=where).tril().triu(1 - sliding_window)


AttentionInterface.register(PACKED, packed_attention)
