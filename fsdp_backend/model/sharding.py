"""FSDP2 over a role's model: one group a transformer block, one the embedding, and the rest, [final norm, head], in the root.

Master weights are float32. With bf16, blocks compute in bfloat16; gradients are reduced in float32 all the same. The root
group is not resharded after forward, because backward needs it at once. A tied embedding is the head's weight too, so it stays
in the root.
"""

import itertools
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fsdp_backend import device
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel


def shard(model: PolicyModel | ValueModel, mesh: DeviceMesh, role: RoleConfig) -> None:
    """Shard the parameters of `model`, in place, over the mesh; with dp_replicate_size over a part of it, in copies."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if role.bf16 else None, reduce_dtype=torch.float32)
    ranks = _copies(mesh, role.dp_replicate_size)
    offload = device.offload_policy(role.fsdp_cpu_offload)
    blocks = transformer_blocks(model.hf)
    for block in blocks:
        fully_shard(
            block,
            mesh=ranks,
            mp_policy=policy,
            offload_policy=offload,
            reshard_after_forward=role.fsdp_reshard_after_forward,
        )
    if isinstance(model, ValueModel):
        exact = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        fully_shard(model.head, mesh=ranks, mp_policy=exact, offload_policy=offload, reshard_after_forward=False)
    if not (isinstance(model, PolicyModel) and model.tied):
        fully_shard(model.hf.get_input_embeddings(), mesh=ranks, mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=ranks, mp_policy=policy, offload_policy=offload)
    _prefetch([model, *blocks])


def _copies(mesh: DeviceMesh, copies: int) -> DeviceMesh:
    """The mesh itself, or one of [copies, ranks of a copy]."""
    if copies == 1:
        return mesh
    if mesh.size() % copies:
        raise ValueError(f"dp_replicate_size {copies} does not divide the {mesh.size()} ranks of the role")
    return init_device_mesh(mesh.device_type, (copies, mesh.size() // copies), mesh_dim_names=("replicate", "shard"))


def _prefetch(chain: list[nn.Module]) -> None:
    """Gather the next block's parameters while one computes, in both directions."""
    for this, following in itertools.pairwise(chain):
        assert isinstance(this, FSDPModule)
        assert isinstance(following, FSDPModule)
        this.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([this])


def transformer_blocks(hf: nn.Module) -> list[nn.Module]:
    """The modules that transformers itself declares must not be split, in order; of nested ones the outermost."""
    names = set(getattr(hf, "_no_split_modules", None) or ())
    blocks: dict[str, nn.Module] = {}
    for path, module in hf.named_modules():
        # A block that is sharded already has a class made by FSDP, with its own as a parent.
        declared = names & {parent.__name__ for parent in type(module).__mro__}
        if declared and not any(path.startswith(f"{outer}.") for outer in blocks):
            blocks[path] = module
    if not blocks:
        raise ValueError(
            f"{type(hf).__name__} does not say which modules its blocks are (_no_split_modules): nothing to shard by"
        )
    return list(blocks.values())


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters that a forward without backward leaves behind in the groups not resharded after forward.

    Between any two uses of a model all its parameters are sharded; whoever runs such a forward calls this.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """What this rank holds of them."""
    locals_ = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(local.numel() * local.element_size() for local in locals_)


def reduce_gradients(model: nn.Module, now: bool) -> None:
    """Whether the next backward reduces gradients over the ranks, or keeps its own, in float32, for a later one to reduce."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(now)
    model.set_is_last_backward(now)
