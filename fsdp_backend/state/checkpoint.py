"""One role's training state on disk: weights, optimizer state, clock and random generators. From it training goes on exactly.

Every rank writes its own shards, by torch.distributed.checkpoint in safetensors files, so a role saved on n ranks loads on m.
Nothing in the folder is pickled. `role.json` is written last: a folder without it is no checkpoint.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import ProcessGroup
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
HF = "hf"
"""Folder with what an export needs besides weights: config, tokenizer, and a model card if someone puts a README.md there."""
_SHARDS = "shards"


def save_checkpoint(
    folder: Path,
    model: PolicyModel | ValueModel,
    optimizer: Optimizer | None,
    mesh: DeviceMesh,
    progress: Mapping[str, int],
    source: Path,
) -> None:
    """Write a new folder. Collective. `progress` are the caller's own counters; no optimizer, no optimizer state. Tokenizer
    files are copied from `source`, so that the folder alone can be exported.

    Raises OSError, on every rank, if it exists or can't be written.
    """
    tensors, summary = _begin(folder, model, optimizer, mesh, progress, source)
    _write(folder, tensors, device.random_state(), summary, mesh.get_group())


def start_saving(
    folder: Path,
    model: PolicyModel | ValueModel,
    optimizer: Optimizer | None,
    mesh: DeviceMesh,
    progress: Mapping[str, int],
    source: Path,
    thread: Executor,
    group: ProcessGroup,
) -> Future[None]:
    """As save_checkpoint, of the state at this moment, but written by `thread` from a copy in host memory while training goes
    on. `group` is for the writers of all ranks alone, one save at a time. What can't be written is raised by the future."""
    tensors, summary = _begin(folder, model, optimizer, mesh, progress, source)
    copies = HuggingFaceStorageWriter(str(folder)).stage(tensors)
    return thread.submit(_write, folder, copies, device.random_state(), summary, group)


def is_whole(folder: Path) -> bool:
    """Whether a save to this folder has come to its end."""
    return (folder / SUMMARY).exists()


def load_checkpoint(
    folder: Path, model: PolicyModel | ValueModel, optimizer: Optimizer | None, mesh: DeviceMesh
) -> dict[str, int]:
    """Put what `folder` holds into model, optimizer and random generators; returns the `progress` it was saved with.

    Collective. Without an optimizer, the state of the folder's is not looked at. On another number of ranks than it was saved
    on, the random generators stay as they are. Raises ValueError, on every rank, if the folder is torn, is of another model or
    optimizer, or has no optimizer state where it is wanted.
    """
    summary = _summary(folder)
    tensors, _ = _state(model, optimizer)
    _require_same(folder, summary, tensors, optimizer)
    error = _first_error(_read(folder, tensors), mesh.get_group())
    if error is not None:
        raise ValueError(f"checkpoint {folder} can't be read: {error}")
    if optimizer is not None:
        _set_numbers(model, optimizer, summary["numbers"])
    if summary["world_size"] == mesh.size():
        device.set_random_state(load_file(_random_file(folder, mesh.get_rank())))
    return dict(summary["progress"])


def export_checkpoint(folder: Path, out: Path) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, in one process, which need not be in a process group. No more
    than one output file's weights are in memory at a time. Raises ValueError if the checkpoint can't be read."""
    summary, hf = _summary(folder), folder / HF
    model = empty_policy(str(hf)) if summary["kind"] == "policy" else empty_value(str(hf))
    write_hf(_weights(folder, summary, model), model, out, hf)
    if (hf / "README.md").exists():
        shutil.copy(hf / "README.md", out)


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


def _state(model: PolicyModel | ValueModel, optimizer: Optimizer | None) -> tuple[dict[str, Tensor], dict[str, float]]:
    """All tensors, sharded ones as DTensors, and the optimizer's plain numbers; both by name."""
    tensors = {f"model.{name}": tensor.detach() for name, tensor in saved_tensors(model.hf).items()}
    numbers: dict[str, float] = {}
    if optimizer is None:
        return tensors, numbers
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


def _begin(
    folder: Path,
    model: PolicyModel | ValueModel,
    optimizer: Optimizer | None,
    mesh: DeviceMesh,
    progress: Mapping[str, int],
    source: Path,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Make the new folder; returns what is to be written into it: tensors, and the summary. Raises OSError on every rank."""
    reshard(model)
    tensors, numbers = _state(model, optimizer)
    _make(folder, model, source, mesh)
    return tensors, {
        "kind": "policy" if isinstance(model, PolicyModel) else "value",
        "progress": dict(progress),
        "world_size": mesh.size(),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "tensors": _described(tensors),
        "numbers": numbers,
    }


def _make(folder: Path, model: PolicyModel | ValueModel, source: Path, mesh: DeviceMesh) -> None:
    """The new folder with all but tensors, made by rank 0; raises OSError on every rank."""
    error = None
    if mesh.get_rank() == 0:
        try:
            (folder / _SHARDS).mkdir(parents=True)
            (folder / HF).mkdir()
            write_config_and_tokenizer(model, folder / HF, source)
        except OSError as failure:
            error = _line(failure)
    _raise_unwritten(folder, _first_error(error, mesh.get_group()))


def _write(
    folder: Path, tensors: dict[str, Tensor], random: dict[str, Tensor], summary: dict[str, Any], group: ProcessGroup
) -> None:
    """This rank's part and, once all have written theirs, the summary; raises OSError on every rank."""
    rank, error = dist.get_rank(group), None
    try:
        writer = HuggingFaceStorageWriter(str(folder / _SHARDS), save_distributed=True)
        save(tensors, storage_writer=writer, process_group=group)
        save_file(random, _random_file(folder, rank))
    except (CheckpointException, OSError, RuntimeError, SafetensorError) as failure:
        error = _line(failure)
    error = _first_error(error, group)
    if error is None and rank == 0:
        try:
            write_durably(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        except OSError as failure:
            error = _line(failure)
    _raise_unwritten(folder, _first_error(error, group))


def _raise_unwritten(folder: Path, error: str | None) -> None:
    if error is not None:
        raise OSError(f"checkpoint {folder} can't be written: {error}")


def _read(folder: Path, tensors: dict[str, Tensor], alone: bool = False) -> str | None:
    """Fill the tensors from the shards, this rank's part or `alone` all; what went wrong, if anything."""
    try:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder / _SHARDS)), no_dist=alone)
    except (CheckpointException, OSError, ValueError, RuntimeError, KeyError) as error:
        return _line(error)
    return None


def _random_file(folder: Path, rank: int) -> Path:
    return folder / f"random_{rank}.safetensors"


def _first_error(error: str | None, group: ProcessGroup) -> str | None:
    """The error of the first rank that has one, on every rank."""
    errors: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(errors, error, group=group)
    return next((each for each in errors if each is not None), None)


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    except FileNotFoundError:
        raise ValueError(f"checkpoint {folder} has no {SUMMARY}: there is none, or its save did not come to an end") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {folder / SUMMARY} can't be read: {error}") from error
    return summary


def _require_same(folder: Path, summary: dict[str, Any], tensors: dict[str, Tensor], optimizer: Optimizer | None) -> None:
    saved, wanted = summary["tensors"], _described(tensors)
    if optimizer is None:
        saved = {name: what for name, what in saved.items() if not name.startswith("optimizer.")}
    elif summary["optimizer"] is None:
        raise ValueError(f"checkpoint {folder} was saved without optimizer state: only no_load_optim goes on from it")
    elif summary["optimizer"] != type(optimizer).__name__:
        raise ValueError(f"checkpoint {folder} is of optimizer {summary['optimizer']}, not {type(optimizer).__name__}")
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ValueError(f"checkpoint {folder} is of another model: {name} is {saved.get(name)}, not {wanted.get(name)}")


def _line(error: BaseException) -> str:
    """One line; of what failed on several ranks, the first."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
