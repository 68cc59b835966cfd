"""Writing a role as a Hugging Face folder: config, safetensors, and the tokenizer files it came with."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from fsdp_backend.model.checkpoint_files import INDEX
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel
from fsdp_backend.state.weight_stream import full_weights

BYTES_PER_FILE = 4 * 1024**3
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
)


def export_hf(model: PolicyModel | ValueModel, folder: Path, source: Path) -> None:
    """Write `model` to `folder`, replacing it. Collective; rank 0 writes. Tokenizer files are copied from `source`."""
    weights = full_weights(model)
    if dist.get_rank() == 0:
        write_hf(weights, model, folder, source)
    else:
        for _ in weights:
            pass
    dist.barrier()


def write_hf(weights: Iterable[tuple[str, Tensor]], model: PolicyModel | ValueModel, folder: Path, source: Path) -> None:
    """Write these weights and the model's config to `folder`, replacing it: a reader finds the whole checkpoint or none.

    Weights are the float32 masters, so the loaded model computes what the trainer did.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    for name, tensor in weights:
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > BYTES_PER_FILE:
            _write_shard(shard, partial, weight_map)
        shard[name] = tensor.contiguous()
    _write_shard(shard, partial, weight_map)
    _write_index(partial, weight_map)
    write_config_and_tokenizer(model, partial, source)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def write_config_and_tokenizer(model: PolicyModel | ValueModel, folder: Path, source: Path) -> None:
    """What a Hugging Face folder holds besides weights."""
    _write_config(model, folder)
    for pattern in _TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copy(file, folder / file.name)


def _write_shard(shard: dict[str, Tensor], folder: Path, weight_map: dict[str, str]) -> None:
    file = f"model-{len(set(weight_map.values())) + 1:05d}.safetensors"
    save_file(shard, folder / file, metadata={"format": "pt"})
    weight_map |= dict.fromkeys(shard, file)
    shard.clear()


def _write_index(folder: Path, weight_map: dict[str, str]) -> None:
    """One file takes the plain name; several get an index."""
    files = sorted(set(weight_map.values()))
    if len(files) == 1:
        os.replace(folder / files[0], folder / "model.safetensors")
        return
    total = sum((folder / file).stat().st_size for file in files)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2))


def _write_config(model: PolicyModel | ValueModel, folder: Path) -> None:
    config = json.loads(model.hf.config.to_json_string(use_diff=False))
    config["architectures"] = [type(model.hf).__name__]
    config["dtype"] = "float32"
    for private in ("_attn_implementation", "attn_implementation", "_name_or_path"):
        config.pop(private, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
