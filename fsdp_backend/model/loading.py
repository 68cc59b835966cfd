"""From a Hugging Face folder to a sharded model.

The model is built on the meta device, sharded, and each rank then reads its own slice of every parameter: no rank ever holds
the whole model, tied embeddings included.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from fsdp_backend import device
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.attention import PACKED
from fsdp_backend.model.checkpoint_files import CheckpointFiles
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import shard
from fsdp_backend.model.value import ValueModel

M = TypeVar("M", PolicyModel, ValueModel)


def load_policy(folder: str, role: RoleConfig, mesh: DeviceMesh) -> PolicyModel:
    """A sharded policy with the weights of `folder`; raises ValueError for missing tensors, wrong shapes or unknown
    architectures."""
    model = _materialise(lambda config: PolicyModel(_causal_lm(config)), folder, role, mesh)
    files = CheckpointFiles(Path(folder))
    absent = _fill(model, files, mesh)
    # Old llama checkpoints hold the rotary frequencies, which are computed anew.
    surplus = {n for n in files.names - set(model.hf.state_dict()) if not n.endswith("rotary_emb.inv_freq")}
    if surplus:
        raise ValueError(f"{folder} holds {len(surplus)} tensors its architecture has no place for, first {sorted(surplus)[0]}")
    if absent:
        raise ValueError(f"{folder} lacks {len(absent)} tensors of its own architecture, first {sorted(absent)[0]}")
    return model


def load_value(folder: str, role: RoleConfig, mesh: DeviceMesh) -> ValueModel:
    """A sharded critic. Without a value head in `folder` the head is zero; a lone weight or bias, or a missing backbone,
    raises."""
    model = _materialise(ValueModel.from_config, folder, role, mesh)
    files = CheckpointFiles(Path(folder))
    absent = _fill(model, files, mesh)
    head = {f"{model.head_name}.{name}" for name, _ in model.head.named_parameters()}
    if absent == {f"{model.head_name}.bias"} and any(
        "SequenceClassification" in a for a in model.hf.config.architectures or ()
    ):
        nn.init.zeros_(model.head.bias)
        absent = set()
    if absent not in (set(), head):
        first = sorted(absent - head or absent)[0]
        raise ValueError(f"{folder} lacks {len(absent - head or absent)} tensors a critic needs, first {first}")
    if absent == head:
        for parameter in model.head.parameters():
            nn.init.zeros_(parameter)
    return model


def _causal_lm(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)


def _materialise(build: Callable[[Any], M], folder: str, role: RoleConfig, mesh: DeviceMesh) -> M:
    """Build on meta, shard, and allocate this rank's part: parameters hold garbage, buffers are right."""
    config = AutoConfig.from_pretrained(folder, dtype=torch.float32)
    _require_packable(config)
    _without_dropout(config)
    with torch.device("meta"):
        model = build(config)
    if not model.hf._supports_attention_backend:
        raise ValueError(f"model type {config.model_type!r} does not let its attention be exchanged: not supported when packed")
    model.hf.tie_weights()
    if role.gradient_checkpointing:
        model.hf.activation_checkpointing_enable({"use_reentrant": False})
    shard(model, mesh, role.bf16)
    model.to_empty(device=device.current())
    _renew_buffers(model)
    return model.train()


def _without_dropout(config: Any) -> None:
    """Dropout would make the log-probs of a forward differ from those of the next."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _require_packable(config: Any) -> None:
    """Raises ValueError for what would be read wrong, or would leak from one packed sample into another."""
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model type {config.model_type!r} comes with quantization_config: quantized weights are not read")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in ("dynamic", "longrope"):
        raise ValueError(f"rope_type {rope!r} depends on the longest sample of a row: not supported when packed")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ValueError(
            f"model type {config.model_type!r} has layers of kind {', '.join(sorted(kinds))}: not supported when packed"
        )


def _fill(model: PolicyModel | ValueModel, files: CheckpointFiles, mesh: DeviceMesh) -> set[str]:
    """Read this rank's rows of every parameter and persistent buffer; returns the names that the files lack."""
    absent = set()
    with torch.no_grad():
        for name, tensor in saved_tensors(model.hf).items():
            if name not in files:
                absent.add(name)
            elif isinstance(tensor, DTensor):
                rows = -(-tensor.shape[0] // mesh.size())  # torch.chunk's rule, which fully_shard follows
                start = min(mesh.get_local_rank() * rows, tensor.shape[0])
                local = tensor.to_local()
                local.copy_(files.read(name, tensor.shape, start, start + local.shape[0]))
            else:
                tensor.copy_(files.read(name, tensor.shape))
    return absent


def saved_tensors(hf: nn.Module) -> dict[str, torch.Tensor]:
    """What a checkpoint of `hf` holds, by Hugging Face name: every parameter, tied ones once, and every persistent buffer."""
    parameters = dict(hf.named_parameters())
    saved = hf.state_dict(keep_vars=True).keys()
    return parameters | {name: buffer for name, buffer in hf.named_buffers() if name in saved}


def _renew_buffers(model: nn.Module) -> None:
    """Compute what `to_empty` left undefined and no checkpoint holds: the rotary frequencies."""
    for module in model.modules():
        if not module._non_persistent_buffers_set:
            continue
        if not hasattr(module, "inv_freq") or not hasattr(module, "config"):
            raise ValueError(
                f"{type(module).__name__} has buffers that no checkpoint holds: this architecture is not supported"
            )
        fresh = type(module)(module.config)
        for name in module._non_persistent_buffers_set:
            getattr(module, name).copy_(getattr(fresh, name))
