"""What a person wants to know of a critic's pass, over the trainable tokens of the whole batch."""

import torch

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.objective.explained_variance import explained_variance


def critic_diagnostics(batch: RolloutBatch, before: Floats, after: Floats) -> dict[str, float]:
    """Explained variance with the values from before and from after a pass, and the moments of the new values and the
    returns."""
    mask, returns = batch.tensor("loss_mask"), batch.tensor("returns")
    report = {
        "explained_variance_before": explained_variance(torch.from_numpy(before.copy()), returns, mask),
        "explained_variance_after": explained_variance(torch.from_numpy(after.copy()), returns, mask),
    }
    for name, column in (("values", after), ("returns", batch.column("returns"))):
        kept = column[batch.loss_mask != 0]
        report[f"{name}_mean"] = float(kept.mean()) if len(kept) else float("nan")
        report[f"{name}_std"] = float(kept.std()) if len(kept) else float("nan")
    return report
