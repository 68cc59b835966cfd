"""Packing the samples of a micro-batch into one row, without padding.

Response token t of a sample is predicted at the position before it: with a prompt of p tokens, its log-prob and its value
V(s_t) come from the hidden state of token p + t - 1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.plan import MicroBatch


@dataclass(frozen=True)
class Pack:
    """T tokens and R trainable response tokens of the samples packed. An empty micro-batch is one dummy token and no response.

    Response tokens without a loss mask are context only: no head is computed for them, and no overflow there can reach a
    gradient.
    """

    input_ids: Tensor
    """[1, T] int64."""
    position_ids: Tensor
    """[1, T] int64, from 0 in every sample."""
    sample_lengths: tuple[int, ...]
    """Tokens of each sample, in the row's order."""
    sample_starts: Tensor
    """[samples + 1] int32, where each sample begins in the row; the last is T."""
    predict_positions: Tensor
    """[R] int64, the position in the row that predicts each of these tokens."""
    targets: Tensor
    """[R] int64, the tokens."""
    response_index: Tensor
    """[R] int64 on the CPU, where each of these tokens stands in the batch's response columns."""
    samples: MicroBatch
    """Positions of the samples in the batch, in the row's order."""
    response_lengths: tuple[int, ...]
    """How many of these tokens each of `samples` has; they stand one sample's after another's."""
    top_p_token_ids: Tensor | None = None
    """[N] int64, the ids that these tokens were sampled from; None: the whole vocabulary."""
    top_p_offsets: Tensor | None = None
    """[R + 1] int64, where each token's ids begin."""

    def column(self, column: np.ndarray) -> Tensor:
        """[R] the part of a response column that belongs to this pack, on its device."""
        return torch.from_numpy(column[self.response_index.numpy()]).to(self.input_ids.device)


def pack(batch: RolloutBatch, samples: MicroBatch, device: torch.device) -> Pack:
    """Join these samples in the order given."""
    if not samples:
        zero, none = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(0, dtype=torch.int64, device=device)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        return Pack(zero, zero, (1,), starts, none, none, torch.zeros(0, dtype=torch.int64), (), ())
    row, positions, predictors, responses = [], [], [], []
    start = 0
    for i in samples:
        first, last = batch.token_offsets[i], batch.token_offsets[i + 1]
        length, response = int(last - first), int(batch.response_lengths[i])
        row.append(batch.tokens[first:last])
        positions.append(np.arange(length))
        in_batch = np.arange(batch.response_offsets[i], batch.response_offsets[i + 1])
        trainable = batch.loss_mask[in_batch] != 0
        predictors.append(np.arange(start + length - response - 1, start + length - 1)[trainable])
        responses.append(in_batch[trainable])
        start += length
    input_ids = torch.from_numpy(np.concatenate(row)).to(device)
    predict_positions = torch.from_numpy(np.concatenate(predictors)).to(device)
    response_index = np.concatenate(responses)
    kept = batch.sampled_from(response_index)
    top_p = () if kept is None else tuple(torch.from_numpy(column).to(device) for column in kept)
    return Pack(
        input_ids=input_ids[None],
        position_ids=torch.from_numpy(np.concatenate(positions)).to(device)[None],
        sample_lengths=tuple(len(r) for r in row),
        sample_starts=torch.tensor(np.cumsum([0, *map(len, row)]), dtype=torch.int32, device=device),
        predict_positions=predict_positions,
        targets=input_ids[predict_positions + 1],
        response_index=torch.from_numpy(response_index),
        samples=samples,
        response_lengths=tuple(len(r) for r in responses),
        **dict(zip(("top_p_token_ids", "top_p_offsets"), top_p, strict=False)),
    )
