"""What a forward of a sample costs, from the model: for balance between ranks, and for the FLOP/s that a run reaches."""

from typing import Any

from fsdp_backend.batch.cost import SampleCost
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import transformer_blocks
from fsdp_backend.model.value import ValueModel


def sample_cost(model: PolicyModel | ValueModel) -> SampleCost:
    """FLOPs of a forward, two for each multiplication with a weight; sliding windows count as if they were full.

    Of a mixture's experts only those count that a token visits.
    """
    config = model.hf.config
    blocks = transformer_blocks(model.hf)
    visited = _share_of_experts(config)
    weights = sum(p.numel() * (visited if p.ndim == 3 else 1.0) for block in blocks for p in block.parameters() if p.ndim >= 2)
    heads = getattr(config, "num_attention_heads", 0)
    head_dim = getattr(config, "head_dim", None)
    width = heads * head_dim if head_dim else config.hidden_size * bool(heads)
    # Queries meet keys and weights meet values, 2 FLOPs each, with half of all pairs on average.
    pairs = 2 * len(blocks) * width
    head = 2.0 * model.head.weight.numel()
    return SampleCost(per_token=2.0 * weights, per_token_pair=float(pairs), per_response_token=head)


def _share_of_experts(config: Any) -> float:
    """Experts a token visits over all there are; fused experts are the only parameters of three dimensions."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if hasattr(config, name)), 0)
    return getattr(config, "num_experts_per_tok", experts) / experts if experts else 1.0
