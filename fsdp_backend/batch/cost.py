"""What a sample costs to compute: what plans are balanced by."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsdp_backend.batch.columns import Ints


@dataclass(frozen=True)
class SampleCost:
    """FLOPs of a forward pass over a sample, as a polynomial of its length. A training step costs three times as much (backward
    is two forwards), which changes no balance.

    Attention is quadratic in the sample, not in the micro-batch: packed samples do not attend to each other.
    """

    per_token: float
    """Of each token: the matrix products of all blocks."""
    per_token_pair: float
    """Of length², for attention. Causal attention looks at length²/2 pairs; the half is folded into this coefficient."""
    per_response_token: float
    """Of each response token: the head. Prompts and masked response tokens have none."""

    def forward(self, lengths: Ints, response_lengths: Ints) -> NDArray[np.float64]:
        """[n] cost of samples with these total lengths [n] and these numbers [n] of response tokens that the head is computed
        for."""
        length = lengths.astype(np.float64)
        return self.per_token * length + self.per_token_pair * length**2 + self.per_response_token * response_lengths


TOKENS = SampleCost(per_token=1, per_token_pair=0, per_response_token=0)
"""A sample costs its number of tokens: for where no model is at hand."""
