"""Samples of a rollout on disk: written by one run, trained on by another that generates nothing."""

import contextlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import torch

from slime.arguments.errors import UserError
from slime.utils.types import Sample


def save_samples(pattern: str, rollout_id: int, samples: Sequence[Sample]) -> None:
    """Write the samples in slime's format, replacing the file at once. Raises UserError if they hold more than plain values:
    numbers, text, lists, mappings, tensors."""
    path = _path(pattern, rollout_id)
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"rollout_id": rollout_id, "samples": [sample.to_dict() for sample in samples]}, partial)
        torch.load(partial, weights_only=True)
        os.replace(partial, path)
    except (OSError, RuntimeError, TypeError, AttributeError, pickle.PickleError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UserError(f"--save-debug-rollout-data {path}: {_line(error)}") from error


def require_samples(pattern: str, num_rollout: int) -> None:
    """Raises UserError for the first rollout that has no file."""
    for rollout_id in range(num_rollout):
        path = _path(pattern, rollout_id)
        if not path.is_file():
            raise UserError(f"--load-debug-rollout-data {path} does not exist: --num-rollout {num_rollout} needs it")


def load_samples(pattern: str, rollout_id: int) -> list[Sample]:
    """Read what save_samples wrote; plain values only, no code is run. Raises UserError if the file can't be used."""
    path = _path(pattern, rollout_id)
    try:
        content = torch.load(path, weights_only=True)
        return [Sample.from_dict(sample) for sample in content["samples"]]
    except (OSError, RuntimeError, LookupError, AttributeError, TypeError, ValueError, EOFError, pickle.PickleError) as error:
        raise UserError(f"--load-debug-rollout-data {path}: {_line(error)}") from error


def _path(pattern: str, rollout_id: int) -> Path:
    return Path(pattern.replace("{rollout_id}", str(rollout_id)))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
