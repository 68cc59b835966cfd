"""From a Hugging Face folder to a sharded model.

The model is built on the meta device, sharded, and each rank then reads its own slice of every parameter: no rank ever holds
the whole model, tied embeddings included. Only a checkpoint that must be converted passes through rank 0 whole.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from fsdp_backend import device
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.architecture import attention_for, causal_lm_class, require_exact, without_dropout
from fsdp_backend.model.checkpoint_files import CheckpointFiles
from fsdp_backend.model.conversion import is_converted, load_converted
from fsdp_backend.model.freezing import freeze
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import shard
from fsdp_backend.model.value import ValueModel

M = TypeVar("M", PolicyModel, ValueModel)


def build_policy(folder: str, role: RoleConfig, mesh: DeviceMesh) -> PolicyModel:
    """The sharded policy of a folder's config; its parameters hold garbage. Raises ValueError for unknown architectures."""
    return _materialise(_policy, folder, role, mesh)


def build_value(folder: str, role: RoleConfig, mesh: DeviceMesh) -> ValueModel:
    """The sharded critic of a folder's config; its parameters hold garbage. Raises ValueError for unknown architectures."""
    return _materialise(ValueModel.from_config, folder, role, mesh)


def load_policy(folder: str, role: RoleConfig, mesh: DeviceMesh) -> PolicyModel:
    """A sharded policy with the weights of `folder`; raises ValueError for missing tensors, wrong shapes or unknown
    architectures."""
    model = build_policy(folder, role, mesh)
    absent, surplus = _fill(model.hf, folder, mesh)
    # Old llama checkpoints hold the rotary frequencies, which are computed anew.
    surplus = {n for n in surplus if not n.endswith("rotary_emb.inv_freq")}
    if surplus:
        raise ValueError(f"{folder} holds {len(surplus)} tensors its architecture has no place for, first {sorted(surplus)[0]}")
    if absent:
        raise ValueError(f"{folder} lacks {len(absent)} tensors of its own architecture, first {sorted(absent)[0]}")
    return model


def load_value(folder: str, role: RoleConfig, mesh: DeviceMesh, require_head: bool = False) -> ValueModel:
    """A sharded critic. Without a value head in `folder` the head is zero; a lone weight or bias, or a missing backbone,
    raises ValueError, and with `require_head` so does a missing head."""
    model = build_value(folder, role, mesh)
    absent, _ = _fill(model.hf, folder, mesh)
    head = {f"{model.head_name}.{name}" for name, _ in model.head.named_parameters()}
    if absent == {f"{model.head_name}.bias"} and any(
        "SequenceClassification" in a for a in model.hf.config.architectures or ()
    ):
        nn.init.zeros_(model.head.bias)
        absent = set()
    if absent not in (set(), head):
        first = sorted(absent - head or absent)[0]
        raise ValueError(f"{folder} lacks {len(absent - head or absent)} tensors a critic needs, first {first}")
    if absent == head and require_head:
        raise ValueError(f"{folder} has no value head, as an earlier critic must")
    if absent == head:
        for parameter in model.head.parameters():
            nn.init.zeros_(parameter)
    return model


def empty_policy(folder: str) -> PolicyModel:
    """The policy of a folder's config, its parameters without memory. Raises ValueError for unknown architectures."""
    return _empty(_policy, folder)


def empty_value(folder: str) -> ValueModel:
    """The critic of a folder's config, its parameters without memory. Raises ValueError for unknown architectures."""
    return _empty(ValueModel.from_config, folder)


def _policy(config: Any) -> PolicyModel:
    model_class = causal_lm_class(config)
    return PolicyModel(model_class._from_config(config, attn_implementation=attention_for(model_class, config)))


def _materialise(build: Callable[[Any], M], folder: str, role: RoleConfig, mesh: DeviceMesh) -> M:
    """Shard a model without memory, and allocate this rank's part: parameters hold garbage, buffers are right."""
    model = _empty(build, folder)
    freeze(model.hf, role)
    if role.gradient_checkpointing:
        model.hf.activation_checkpointing_enable({"use_reentrant": False})
    shard(model, mesh, role)
    buffers = {name: buffer.to(device.current()) for name, buffer in model.named_buffers()}
    model.to_empty(device=device.parameter_home(role.fsdp_cpu_offload))
    for name, buffer in buffers.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, buffer)
    return model.train()


def _empty(build: Callable[[Any], M], folder: str) -> M:
    config = AutoConfig.from_pretrained(folder, dtype=torch.float32)
    require_exact(config)
    without_dropout(config)
    # Buffers are real from the start: rotary frequencies and the like stand in no checkpoint.
    with init_empty_weights(include_buffers=False):
        model = build(config)
    model.hf.tie_weights()
    return model


def _fill(hf: nn.Module, folder: str, mesh: DeviceMesh) -> tuple[set[str], set[str]]:
    """Read every parameter and persistent buffer; returns the names that the checkpoint lacks, and those without a place."""
    files, wanted = CheckpointFiles(Path(folder)), saved_tensors(hf)
    surplus = files.names - set(hf.state_dict())
    if surplus and is_converted(hf):
        return load_converted(hf, wanted, folder, mesh)
    with torch.no_grad():
        for name, tensor in wanted.items():
            if name in files.names:
                _read(files, name, tensor)
    return wanted.keys() - files.names, surplus


def _read(files: CheckpointFiles, name: str, tensor: Tensor) -> None:
    """Fill this rank's rows of a parameter, or a whole buffer."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(files.read(name, tensor.shape))
        return
    # Shards lie along the last dimension of the mesh; torch.chunk's rule, which fully_shard follows.
    ranks, last = tensor.device_mesh, tensor.device_mesh.ndim - 1
    rows = -(-tensor.shape[0] // ranks.size(last))
    start = min(ranks.get_local_rank(last) * rows, tensor.shape[0])
    local = tensor.to_local()
    local.copy_(files.read(name, tensor.shape, start, start + local.shape[0]))


def saved_tensors(hf: nn.Module) -> dict[str, torch.Tensor]:
    """What a checkpoint of `hf` holds, by Hugging Face name: every parameter, tied ones once, and every persistent buffer."""
    parameters = dict(hf.named_parameters())
    saved = hf.state_dict(keep_vars=True).keys()
    return parameters | {name: buffer for name, buffer in hf.named_buffers() if name in saved}
