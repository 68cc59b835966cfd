"""FSDP2 over a role's model: one group a transformer block, one the embedding, and the rest, [final norm, head], in the root.

Master weights are float32. With bf16, blocks compute in bfloat16 and gradients are still reduced in float32. The root group is
not resharded after forward, because backward needs it at once. A tied embedding is the head's weight too, so it stays in the
root.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel


def shard(model: PolicyModel | ValueModel, mesh: DeviceMesh, bf16: bool) -> None:
    """Shard the parameters of `model`, in place, over the mesh."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32)
    blocks = transformer_blocks(model.hf)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    if isinstance(model, ValueModel):
        fully_shard(
            model.head, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32), reshard_after_forward=False
        )
    if not (isinstance(model, PolicyModel) and model.tied):
        fully_shard(model.hf.get_input_embeddings(), mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(model, FSDPModule)


def transformer_blocks(hf: nn.Module) -> list[nn.Module]:
    """The modules that transformers itself declares must not be split, in order."""
    names = set(getattr(hf, "_no_split_modules", None) or ())
    blocks = [module for module in hf.modules() if type(module).__name__ in names]
    if not blocks:
        raise ValueError(
            f"{type(hf).__name__} does not say which modules its blocks are (_no_split_modules): nothing to shard by"
        )
    return blocks


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters that a forward without backward leaves behind in the groups not resharded after forward.

    Between any two uses of a model all its parameters are sharded; whoever runs such a forward calls this.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
