"""slime's plug-ins that run inside a training process, in the engine's terms."""

from collections.abc import Callable, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack
from fsdp_backend.training.actor_loss import Correction, Metrics
from slime.arguments.run_config import RunConfig
from slime.utils.misc import load_function


def custom_correction(config: RunConfig) -> Correction | None:
    """The function of --custom-tis-function-path; None without one."""
    path = config.ppo.custom_tis_function_path
    return None if path is None else _correction(load_function(path), config.namespace(), path)


def _correction(function: Callable[..., Any], args: Any, path: str) -> Correction:
    """slime's contract: whole responses, masked tokens included, as lists of a tensor a sample; the loss, masks and per-token
    metrics come back. As in slime, denominators stay those of the loss mask, and a mask that comes back thins the whole loss,
    entropy and KL included."""
    reported: Set[str] | None = None

    def correct(
        loss: Tensor, *, log_probs: Tensor, rollout_log_probs: Tensor, pack: Pack, batch: RolloutBatch
    ) -> tuple[Tensor, Tensor, Metrics]:
        nonlocal reported
        view = Responses(pack, batch)
        answer = function(
            args,
            pg_loss=view.whole(loss),
            train_log_probs=view.split(view.whole(log_probs)),
            rollout_log_probs=view.split(view.whole(rollout_log_probs)),
            loss_masks=view.split(view.whole(torch.ones_like(loss))),
            total_lengths=view.total_lengths,
            response_lengths=view.response_lengths,
        )
        try:
            corrected, masks, metrics = answer
            mask, named = torch.cat(list(masks)), {name: torch.as_tensor(value) for name, value in metrics.items()}
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"custom_tis_function_path {path} must return (loss, list of masks, dict of metrics): {error}"
            ) from error
        for name, value in {"the loss": corrected, "masks": mask, **named}.items():
            if value.numel() != sum(view.response_lengths):
                wanted = f"{sum(view.response_lengths)} response tokens"
                raise ValueError(f"custom_tis_function_path {path} returned {value.numel()} entries of {name} for {wanted}")
        reported = named.keys() if reported is None else reported
        if reported != named.keys():
            raise ValueError(f"custom_tis_function_path {path} must report the same metrics every time, got {sorted(named)}")
        kept = {f"custom_tis/{name}": view.trainable(value.to(loss)) for name, value in named.items()}
        return view.trainable(corrected), view.trainable(mask.to(loss)), kept

    return correct


class Responses:
    """The whole responses of a pack. An empty pack counts as one masked token: every rank must learn the metrics' names."""

    def __init__(self, pack: Pack, batch: RolloutBatch) -> None:
        samples = list(pack.samples)
        self.response_lengths: list[int] = batch.response_lengths[samples].tolist() or [1]
        self.total_lengths: list[int] = batch.total_lengths[samples].tolist() or [2]
        everything = [np.arange(batch.response_offsets[i], batch.response_offsets[i + 1]) for i in samples]
        self._everything, self._device = np.concatenate(everything) if samples else None, pack.input_ids.device
        trained = np.concatenate([batch.loss_mask[span] != 0 for span in everything] or [np.zeros(1, dtype=np.bool_)])
        self.position = torch.from_numpy(np.flatnonzero(trained)).to(pack.input_ids.device)

    def whole(self, trainable: Tensor) -> Tensor:
        """[R of the pack] to all response tokens, 0 at masked ones."""
        return trainable.new_zeros(sum(self.response_lengths)).index_copy(0, self.position, trainable)

    def trainable(self, whole: Tensor) -> Tensor:
        """All response tokens to [R of the pack]."""
        return whole[self.position]

    def split(self, whole: Tensor) -> list[Tensor]:
        """A tensor a sample."""
        return list(torch.split(whole, self.response_lengths))

    def column(self, column: np.ndarray) -> list[Tensor]:
        """A response column of the batch, a tensor a sample."""
        whole = np.zeros(1, dtype=column.dtype) if self._everything is None else column[self._everything]
        return self.split(torch.from_numpy(whole).to(self._device))
