"""Advantages and returns by a function of one's own, which the driver calls on the whole rollout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.training.targets import kl_penalty, normalized
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.rollout.plug_in import PlugIn, plug_in

_COLUMNS = ("rollout_log_probs", "log_probs", "ref_log_probs", "values")
_SET = ("advantages", "returns")


def custom_targets(config: RunConfig) -> Callable[[RolloutBatch], RolloutBatch] | None:
    """From a batch to the same with the `advantages` and `returns` of --custom-advantage-function-path; None without one.

    As in slime, the advantages are whitened afterwards where --normalize-advantages asks for it.
    """
    args = config.namespace()
    function = plug_in(args, "custom_advantage_function_path")
    if function is None or not config.ppo.generates:
        return None

    def add(batch: RolloutBatch) -> RolloutBatch:
        data = rollout_data(batch, config)
        function(args, data, about=f"samples {batch.sample_index[0]} to {batch.sample_index[-1]}")
        advantages, returns = (_column(function, name, data, batch) for name in _SET)
        return batch.with_columns(advantages=normalized(advantages, batch, config.ppo).numpy(), returns=returns.numpy())

    return add


def rollout_data(batch: RolloutBatch, config: RunConfig) -> dict[str, Any]:
    """The batch as slime's trainer knows it: by slime's keys, an entry a sample. Of log-probs and values there are those that
    the run has computed; they are 0 where the loss mask is. All are copies."""
    lengths = batch.response_lengths.tolist()
    kl = kl_penalty(batch, config.ppo)
    _, membership = np.unique(batch.rollout_index, return_inverse=True)
    data: dict[str, Any] = {
        "tokens": list(torch.split(batch.tensor("tokens"), batch.total_lengths.tolist())),
        "response_lengths": lengths,
        "total_lengths": batch.total_lengths.tolist(),
        "loss_masks": list(torch.split(batch.tensor("loss_mask").int(), lengths)),
        "rewards": batch.reward.tolist(),
        "raw_reward": (batch.reward if batch.raw_reward is None else batch.raw_reward).tolist(),
        "truncated": batch.truncated.astype(np.int64).tolist(),
        "sample_indices": batch.sample_index.tolist(),
        "rollout_ids": batch.rollout_index.tolist(),
        "rollout_mask_sums": np.bincount(membership, weights=batch.trainable_lengths)[membership].astype(np.int64).tolist(),
        "kl": list(torch.split(torch.zeros(sum(lengths)) if kl is None else kl, lengths)),
    }
    there = [name for name in _COLUMNS if getattr(batch, name) is not None]
    return data | {name: list(torch.split(batch.tensor(name), lengths)) for name in there}


def _column(function: PlugIn, name: str, data: dict[str, Any], batch: RolloutBatch) -> Tensor:
    """What the function has set, [R] float32. Raises UserError, naming the sample, for what can't be trained on."""
    entries = data.get(name)
    if not isinstance(entries, list | tuple) or len(entries) != len(batch):
        found = "not set" if entries is None else f"{type(entries).__name__}, {str(entries)[:80]!r}"
        raise UserError(
            f'{function} must set rollout_data["{name}"] to a list of {len(batch)} tensors, one a sample: it is {found}'
        )
    for index, length, entry in zip(batch.sample_index, batch.response_lengths, entries, strict=True):
        if not isinstance(entry, Tensor) or entry.shape != (length,):
            shape = f"shape {tuple(entry.shape)}" if isinstance(entry, Tensor) else type(entry).__name__
            raise UserError(
                f"{function}: {name} of sample {index} must be a tensor of {length} entries, one a response token, not {shape}"
            )
        if not bool(torch.isfinite(entry).all()):
            place = int(torch.isfinite(entry).logical_not().nonzero()[0])
            raise UserError(f"{function}: {name} of sample {index} is {float(entry[place])} at response token {place}")
    return torch.cat([entry.detach().float().cpu() for entry in entries])
