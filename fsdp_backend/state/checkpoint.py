"""One role's training state on disk: weights, optimizer state, clock and random generators. From it training goes on exactly.

Every rank writes its own shards, by torch.distributed.checkpoint in safetensors files, so a role saved on n ranks loads on m.
Nothing in the folder is pickled. `role.json` is written last: a folder without it is no checkpoint.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from fsdp_backend import device
from fsdp_backend.model.conversion import as_saved, is_converted
from fsdp_backend.model.loading import empty_policy, empty_value, saved_tensors
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.sharding import reshard
from fsdp_backend.model.value import ValueModel
from fsdp_backend.state.hf_export import BYTES_PER_FILE, write_config_and_tokenizer, write_hf

SUMMARY = "role.json"
_SHARDS, _HF = "shards", "hf"


def save_checkpoint(
    folder: Path,
    model: PolicyModel | ValueModel,
    optimizer: Optimizer,
    mesh: DeviceMesh,
    rollouts_trained: int,
    source: Path,
) -> None:
    """Write a new folder. Collective. Tokenizer files are copied from `source`, so that the folder alone can be exported.

    Raises OSError, on every rank, if it exists or can't be written.
    """
    reshard(model)
    tensors, numbers = _state(model, optimizer)
    error = _first_error(_make(folder, model, source) if mesh.get_rank() == 0 else None, mesh)
    if error is None:
        error = _first_error(_write(folder, tensors, mesh.get_rank()), mesh)
    if error is None and mesh.get_rank() == 0:
        summary = {
            "kind": "policy" if isinstance(model, PolicyModel) else "value",
            "rollouts_trained": rollouts_trained,
            "world_size": mesh.size(),
            "optimizer": type(optimizer).__name__,
            "tensors": _described(tensors),
            "numbers": numbers,
        }
        write_durably(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    dist.barrier(mesh.get_group())
    if error is not None:
        raise OSError(f"checkpoint {folder} can't be written: {error}")


def load_checkpoint(folder: Path, model: PolicyModel | ValueModel, optimizer: Optimizer, mesh: DeviceMesh) -> int:
    """Put what `folder` holds into model, optimizer and random generators; returns the rollouts trained. Collective.

    On another number of ranks than it was saved on, the random generators stay as they are. Raises ValueError, on every rank,
    if the folder is torn or is of another model or optimizer.
    """
    summary = _summary(folder)
    tensors, _ = _state(model, optimizer)
    _require_same(folder, summary, tensors, optimizer)
    error = _first_error(_read(folder, tensors), mesh)
    if error is not None:
        raise ValueError(f"checkpoint {folder} can't be read: {error}")
    _set_numbers(model, optimizer, summary["numbers"])
    if summary["world_size"] == mesh.size():
        device.set_random_state(load_file(_random_file(folder, mesh.get_rank())))
    return int(summary["rollouts_trained"])


def export_checkpoint(folder: Path, out: Path) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, in one process, which need not be in a process group. No more
    than one output file's weights are in memory at a time. Raises ValueError if the checkpoint can't be read."""
    summary, hf = _summary(folder), folder / _HF
    model = empty_policy(str(hf)) if summary["kind"] == "policy" else empty_value(str(hf))
    write_hf(_weights(folder, summary, model), model, out, hf)


def _weights(folder: Path, summary: dict[str, Any], model: PolicyModel | ValueModel) -> Iterator[tuple[str, Tensor]]:
    """As full_weights yields them, read from the shards a few at a time."""
    waiting, converted = dict.fromkeys(saved_tensors(model.hf)), is_converted(model.hf)
    while waiting:
        batch: dict[str, Tensor] = {}
        while waiting and (not batch or sum(tensor.nbytes for tensor in batch.values()) < BYTES_PER_FILE // 2):
            name = next(iter(waiting))
            shape, dtype = summary["tensors"][f"model.{name}"]
            batch[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            del waiting[name]
        error = _read(folder, {f"model.{name}": tensor for name, tensor in batch.items()}, alone=True)
        if error is not None:
            raise ValueError(f"checkpoint {folder} can't be read: {error}")
        for name, tensor in batch.items():
            yield from as_saved(model.hf, name, tensor) if converted else ((name, tensor),)


def write_durably(file: Path, text: str) -> None:
    """Write a file so that after a crash it is there whole or not at all."""
    partial = file.with_name(file.name + ".partial")
    with partial.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _state(model: PolicyModel | ValueModel, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """All tensors, sharded ones as DTensors, and the optimizer's plain numbers; both by name."""
    tensors = {f"model.{name}": tensor.detach() for name, tensor in saved_tensors(model.hf).items()}
    numbers: dict[str, float] = {}
    for name, parameter in model.hf.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{key}.{name}"] = value
            else:
                numbers[f"optimizer.{key}.{name}"] = value
    return tensors, numbers


def _set_numbers(model: PolicyModel | ValueModel, optimizer: Optimizer, numbers: dict[str, float]) -> None:
    for name, parameter in model.hf.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key in [key for key, value in state.items() if not isinstance(value, Tensor)]:
            state[key] = numbers[f"optimizer.{key}.{name}"]


def _described(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors.items()}


def _make(folder: Path, model: PolicyModel | ValueModel, source: Path) -> str | None:
    try:
        (folder / _SHARDS).mkdir(parents=True)
        (folder / _HF).mkdir()
        write_config_and_tokenizer(model, folder / _HF, source)
    except OSError as error:
        return _line(error)
    return None


def _write(folder: Path, tensors: dict[str, Tensor], rank: int) -> str | None:
    """This rank's part; what went wrong, if anything."""
    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder / _SHARDS), save_distributed=True))
        save_file(device.random_state(), _random_file(folder, rank))
    except (CheckpointException, OSError, RuntimeError) as error:
        return _line(error)
    return None


def _read(folder: Path, tensors: dict[str, Tensor], alone: bool = False) -> str | None:
    """Fill the tensors from the shards, this rank's part or `alone` all; what went wrong, if anything."""
    try:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder / _SHARDS)), no_dist=alone)
    except (CheckpointException, OSError, ValueError, RuntimeError, KeyError) as error:
        return _line(error)
    return None


def _random_file(folder: Path, rank: int) -> Path:
    return folder / f"random_{rank}.safetensors"


def _first_error(error: str | None, mesh: DeviceMesh) -> str | None:
    """The error of the first rank that has one, on every rank."""
    errors: list[str | None] = [None] * mesh.size()
    dist.all_gather_object(errors, error, group=mesh.get_group())
    return next((each for each in errors if each is not None), None)


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    except FileNotFoundError:
        raise ValueError(f"checkpoint {folder} has no {SUMMARY}: there is none, or its save did not come to an end") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {folder / SUMMARY} can't be read: {error}") from error
    return summary


def _require_same(folder: Path, summary: dict[str, Any], tensors: dict[str, Tensor], optimizer: Optimizer) -> None:
    if summary["optimizer"] != type(optimizer).__name__:
        raise ValueError(f"checkpoint {folder} is of optimizer {summary['optimizer']}, not {type(optimizer).__name__}")
    saved, wanted = summary["tensors"], _described(tensors)
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ValueError(f"checkpoint {folder} is of another model: {name} is {saved.get(name)}, not {wanted.get(name)}")


def _line(error: BaseException) -> str:
    """One line; of what failed on several ranks, the first."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
