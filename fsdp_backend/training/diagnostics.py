"""What a person wants to know of a critic's pass."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.objective.explained_variance import explained_variance

Measured = tuple[Floats, NDArray[np.bool_]]
"""[R] values, and [R] bool, the response tokens they were measured on."""


def critic_diagnostics(batch: RolloutBatch, before: Measured, after: Measured) -> dict[str, float]:
    """Explained variance before and after a pass, and after it the moments of values and returns; each over the tokens that its
    values were measured on."""
    values, returns = _on(after, after[0]), _on(after, batch.column("returns"))
    return {
        "explained_variance_before": explained(batch, before),
        "explained_variance_after": explained(batch, after),
        "values_mean": float(values.mean()),
        "values_std": float(values.std(unbiased=False)),
        "returns_mean": float(returns.mean()),
        "returns_std": float(returns.std(unbiased=False)),
    }


def everywhere(batch: RolloutBatch) -> Measured:
    """The batch's `values`, at all trainable tokens."""
    return batch.column("values"), batch.loss_mask != 0


def explained(batch: RolloutBatch, measured: Measured) -> float:
    """Explained variance of the batch's returns; NaN where they do not vary."""
    values, tokens = measured
    return explained_variance(torch.tensor(values), batch.tensor("returns"), torch.tensor(tokens))


def _on(measured: Measured, column: Floats) -> Tensor:
    return torch.tensor(column[measured[1]])
