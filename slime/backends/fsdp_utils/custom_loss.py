"""slime's custom loss in the engine's terms."""

from collections.abc import Callable, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RESPONSE_COLUMNS, RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.training.actor import CustomLoss
from fsdp_backend.training.learner import Share
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.plugins import Responses
from slime.utils.misc import load_function


def custom_loss(config: RunConfig) -> CustomLoss | None:
    """The function of --custom-loss-function-path; None without one."""
    path = config.ppo.custom_loss_function_path
    return None if path is None else _loss(load_function(path), config.namespace(), path)


def _loss(function: Callable[..., Any], args: Any, path: str) -> CustomLoss:
    """slime's contract: loss and metrics are sums over the micro-batch's rollouts (tokens, with calculate_per_token_loss), as
    `sum_of_sample_mean` makes them of all response tokens, and are divided by those of the whole step."""
    reported: Set[str] | None = None

    def compute(logits: Tensor, pack: Pack, batch: RolloutBatch, share: Share) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal reported
        if pack.top_p_token_ids is not None:
            raise ValueError(
                f"custom_loss_function_path {path} gets logits of the whole vocabulary, but samples hold top-p sets"
            )
        view = Responses(pack, batch)

        def sum_of_sample_mean(per_token: Tensor) -> Tensor:
            return (view.trainable(per_token) * share.weight).sum() * share.step_size

        whole = logits if pack.samples else logits.repeat(2, 1)  # an empty micro-batch is shown as one masked token
        answer = function(args, micro_batch(pack, batch, view), whole[None], sum_of_sample_mean)
        try:
            loss, metrics = answer
            named = {name: torch.as_tensor(value, device=logits.device) for name, value in metrics.items()}
            loss = loss.reshape(())
            named = {name: value.reshape(()) for name, value in named.items()}
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"custom_loss_function_path {path} must return (scalar, dict of scalars): {error}") from error
        reported = named.keys() if reported is None else reported
        if reported != named.keys():
            raise ValueError(f"custom_loss_function_path {path} must report the same metrics every time, got {sorted(named)}")
        # Every rank takes part in backward, whatever the function has made of its micro-batch.
        part = (loss if pack.samples else loss * 0) / share.step_size + logits[:0].sum()
        parts = {f"custom_loss/{name}": value / share.step_size * bool(pack.samples) for name, value in named.items()}
        return part, {"loss": part, **parts}

    return compute


def micro_batch(pack: Pack, batch: RolloutBatch, view: Responses) -> dict[str, Any]:
    """The pack by the keys of slime's batch, an entry a sample but for `tokens`, which is the row that the logits belong to. Of
    log-probs and values there are those that the run has computed; they are 0 where the loss mask is."""
    row = pack.input_ids[0] if pack.samples else pack.input_ids[0].repeat(2)
    _, membership = np.unique(batch.rollout_index, return_inverse=True)
    mask_sums = np.bincount(membership, weights=batch.trainable_lengths)[membership]
    there = [name for name in RESPONSE_COLUMNS if getattr(batch, name) is not None]
    return {
        "tokens": row[None],
        "unconcat_tokens": list(torch.split(row, view.total_lengths)),
        "total_lengths": view.total_lengths,
        "response_lengths": view.response_lengths,
        "loss_masks": [mask.int() for mask in view.column(batch.loss_mask)],
        "rewards": batch.reward[list(pack.samples)].tolist() or [0.0],
        "truncated": batch.truncated[list(pack.samples)].astype(np.int64).tolist() or [0],
        "sample_indices": batch.sample_index[list(pack.samples)].tolist() or [-1],
        "rollout_mask_sums": mask_sums[list(pack.samples)].tolist() or [0.0],
        **{name: view.column(getattr(batch, name)) for name in there},
    }
