"""slime's train-data dict, as --custom-convert-samples-to-train-data-path makes it, to the RolloutBatch that training takes."""

from typing import Any

import numpy as np

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.rollout.plug_in import PlugIn

_NEEDED = ("tokens", "response_lengths", "rewards", "loss_masks")
_OPTIONAL = ("sample_indices", "rollout_ids", "rollout_mask_sums", "truncated", "raw_reward", "rollout_log_probs")
_SET_ASIDE = ("round_number", "metadata", "source_names", "total_lengths", "prompt")
"""slime itself trains on none of these."""


def batch_from_train_data(plug_in: PlugIn, data: Any) -> tuple[RolloutBatch, list[float]]:
    """The batch, and the rewards as the samples got them. Raises UserError, naming the plug-in and the key, for a dict that is
    not of slime's form or holds what training would ignore."""
    if not isinstance(data, dict):
        raise plug_in.wrong(data, "a dict of slime's train data")
    missing = [key for key in _NEEDED if key not in data]
    unknown = [key for key in data if key not in (*_NEEDED, *_OPTIONAL, *_SET_ASIDE)]
    if missing or unknown:
        words = [f"has no {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(unknown)}, unknown here"] * bool(unknown)
        raise UserError(f"{plug_in}: the dict {' and '.join(words)}")
    n = len(data["tokens"])
    wrong = [key for key in (*_NEEDED, *_OPTIONAL) if key in data and len(data[key]) != n]
    if wrong:
        raise UserError(f"{plug_in}: {wrong[0]} has {len(data[wrong[0]])} entries for {n} samples")
    indices = list(data["sample_indices"]) if "sample_indices" in data else list(range(n))
    try:
        batch = RolloutBatch.from_samples(
            tokens=data["tokens"],
            response_lengths=[int(length) for length in data["response_lengths"]],
            loss_masks=data["loss_masks"],
            rewards=data["rewards"],
            rollout_index=list(data["rollout_ids"]) if "rollout_ids" in data else indices,
            sample_index=indices,
            truncated=[bool(each) for each in data["truncated"]] if "truncated" in data else None,
            rollout_log_probs=data.get("rollout_log_probs"),
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{plug_in}: {error}") from error
    _require_values(plug_in, batch, data)
    return batch, [float(each) for each in (data["raw_reward"] if "raw_reward" in data else data["rewards"])]


def _require_values(plug_in: PlugIn, batch: RolloutBatch, data: dict[str, Any]) -> None:
    """What would otherwise surface as a loss of NaN, or as another loss than the plug-in's author wanted."""
    if not np.isfinite(batch.reward).all():
        position = int(np.argmin(np.isfinite(batch.reward)))
        raise UserError(f"{plug_in}: sample {batch.sample_index[position]} has the reward {batch.reward[position]}")
    if "rollout_mask_sums" in data:
        _, membership = np.unique(batch.rollout_index, return_inverse=True)
        sums = np.bincount(membership, weights=batch.trainable_lengths)[membership]
        if not np.array_equal(sums, np.asarray(data["rollout_mask_sums"], dtype=np.float64)):
            raise UserError(f"{plug_in}: rollout_mask_sums are not the sums of loss_masks by rollout_ids, which training takes")
