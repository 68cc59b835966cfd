"""The weight of every response token in its step's loss, computed over the whole step before the first backward.

The whole batch is on every rank, so no communication is needed, and the loss of a step does not depend on how the step is cut
into ranks and micro-batches.
"""

import numpy as np

from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.batch.plan import Step


def token_weights(batch: RolloutBatch, step: Step, per_token: bool) -> Floats:
    """[R] weights w, such that the step's loss is sum(w * loss per token); 0 outside the step and at masked tokens.

    By default a step's loss is the mean over its rollouts of each rollout's masked token mean: the samples of a rollout share
    its denominator. `per_token`: the mean over the step's tokens. As in slime, a rollout without trainable tokens still counts
    in the mean over rollouts, and per token a sample without any counts as one token.
    """
    samples, size = np.asarray(step.samples), step_size(batch, step, per_token)
    trainable = batch.trainable_lengths[samples]
    if per_token:
        sample_weight = np.full(len(samples), 1.0 / size)
    else:
        _, membership = np.unique(batch.rollout_index[samples], return_inverse=True)
        tokens_of_rollout = np.bincount(membership, weights=trainable)
        sample_weight = 1.0 / (np.maximum(tokens_of_rollout, 1) * size)[membership]
    weight_of = np.zeros(len(batch))
    weight_of[samples] = sample_weight
    weights: Floats = (np.repeat(weight_of, batch.response_lengths) * (batch.loss_mask != 0)).astype(np.float32)
    return weights


def step_size(batch: RolloutBatch, step: Step, per_token: bool) -> int:
    """What the step's loss is a mean over: its rollouts, or with `per_token` its tokens."""
    samples = np.asarray(step.samples)
    if per_token:
        return int(np.maximum(batch.trainable_lengths[samples], 1).sum())
    return len(np.unique(batch.rollout_index[samples]))
