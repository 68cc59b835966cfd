"""Floating-point operations that an update can't do without, and how many the machine does in a matrix product."""

import time

import torch

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from tests.bench.setting import Setting, Shape
from tests.bench.timing import settle

FORWARD_BACKWARD = 3
"""A backward pass has two products for each of the forward pass. Recomputed ones don't count."""
GEMM_TRIALS = 5


def backbone_flops(shape: Shape, batch: RolloutBatch) -> float:
    """One forward pass of the transformer blocks: 2 a weight of a matrix and token, and causal attention's two products."""
    h, q, kv = shape.hidden_size, shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    weights = h * (q + 2 * kv) + q * h + 3 * h * shape.intermediate_size
    lengths = batch.total_lengths.astype(float)
    pairs = float((lengths * (lengths + 1) / 2).sum())
    return shape.num_hidden_layers * (2.0 * weights * float(lengths.sum()) + 2 * 2 * q * pairs)


def policy_flops(shape: Shape, batch: RolloutBatch) -> float:
    """One forward pass of the policy; the head is needed at response tokens only."""
    return backbone_flops(shape, batch) + 2.0 * shape.hidden_size * shape.vocab_size * len(batch.loss_mask)


def value_flops(shape: Shape, batch: RolloutBatch) -> float:
    """One forward pass of the critic."""
    return backbone_flops(shape, batch) + 2.0 * shape.hidden_size * len(batch.loss_mask)


def gemm_seconds_per_flop(setting: Setting, dtype: torch.dtype) -> float:
    """Of the best of a few square matrix products, by the threads that PyTorch has now."""
    best = float("inf")
    for size in setting.gemm_sizes:
        a, b = (torch.randn(size, size, device=device.current(), dtype=dtype) for _ in range(2))
        for _ in range(GEMM_TRIALS):
            settle()
            start = time.perf_counter()
            torch.mm(a, b)
            settle()
            best = min(best, (time.perf_counter() - start) / (2.0 * size**3))
    return best
