"""RolloutBatch: what one rollout produced, as flat columns.

Jagged: the values of all samples stand one after another in 1-D arrays, and offsets say where a sample begins. Numpy, because a
batch travels between processes (Ray's object store maps numpy without a copy).

Example: sample 0 has prompt [7, 8] and response [1, 2, 3], sample 1 has prompt [9] and response [4]:

    tokens           = [7, 8, 1, 2, 3, 9, 4]      token_offsets    = [0, 5, 7]
    loss_mask        =       [1, 0, 1,    1]      response_offsets = [0, 3, 4]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SAMPLE_COLUMNS = ("reward", "sample_index", "rollout_index", "truncated", "weight_version")
RESPONSE_COLUMNS = ("rollout_log_probs", "log_probs", "ref_log_probs", "values", "advantages", "returns")


@dataclass(frozen=True)
class RolloutBatch:
    """n samples, T tokens and R response tokens in all. A response is the tail of its sample's tokens."""

    tokens: Ints
    """[T] prompt and response of each sample."""
    token_offsets: Ints
    """[n + 1] where each sample's tokens begin; the last is T."""
    response_offsets: Ints
    """[n + 1] where each sample's response tokens begin; the last is R."""
    loss_mask: Floats
    """[R] 1 = trainable, 0 = observation."""
    reward: Floats
    """[n] one a sample; for estimators with a group baseline, the normalised one."""
    sample_index: Ints
    """[n] number of the sample within the run."""
    rollout_index: Ints
    """[n] samples with the same number belong to one rollout and share its weight in the loss."""
    truncated: NDArray[np.bool_]
    """[n] whether generation hit its length limit."""
    weight_version: Ints
    """[n] version of the weights that generated the end of the response."""
    raw_reward: Floats | None = None
    """[n] the reward as it was given, before any normalisation."""
    rollout_log_probs: Floats | None = None
    """[R] log-probs as the rollout engine saw them."""
    log_probs: Floats | None = None
    """[R] log-probs from before the actor's update: its own, or the rollout's where those are taken instead."""
    ref_log_probs: Floats | None = None
    """[R] log-probs of the reference model."""
    values: Floats | None = None
    """[R] the critic's values: before its update, and for advantages of values after it, after."""
    advantages: Floats | None = None
    """[R] of the actor."""
    returns: Floats | None = None
    """[R] targets of the critic."""
    top_p_token_ids: Ints | None = None
    """[N] the token ids that each response token was sampled from, one token's after another's, where sampling was cut (top-p).
    Log-probs are then those among these ids. None: the whole vocabulary."""
    top_p_offsets: Ints | None = None
    """[R + 1] where each response token's ids begin; the last is N."""

    def __post_init__(self) -> None:
        n, responses = len(self.token_offsets) - 1, int(self.response_offsets[-1])
        if n == 0:
            raise ValueError("a rollout batch needs at least one sample")
        for name, per_sample in (
            ("token_offsets", self.token_offsets[1:]),
            ("response_offsets", self.response_offsets[1:]),
            *((name, getattr(self, name)) for name in SAMPLE_COLUMNS),
            *([] if self.raw_reward is None else [("raw_reward", self.raw_reward)]),
        ):
            if len(per_sample) != n:
                raise ValueError(f"column {name} has {len(per_sample)} entries for {n} samples")
        if np.any(self.prompt_lengths < 1):
            bad = int(self.sample_index[np.argmax(self.prompt_lengths < 1)])
            raise ValueError(f"sample {bad} has no prompt token: its first response token has no position to be predicted from")
        for name in ("loss_mask", *RESPONSE_COLUMNS):
            column = getattr(self, name)
            if column is not None and len(column) != responses:
                raise ValueError(f"column {name} has {len(column)} entries for {responses} response tokens")
        if self.top_p_offsets is not None and len(self.top_p_offsets) != responses + 1:
            raise ValueError(
                f"top_p_offsets has {len(self.top_p_offsets)} entries for {responses} response tokens, not one more"
            )

    @classmethod
    def from_samples(
        cls,
        tokens: Sequence[Sequence[int]],
        response_lengths: Sequence[int],
        loss_masks: Sequence[Sequence[int]],
        rewards: Sequence[float],
        *,
        rollout_index: Sequence[int] | None = None,
        sample_index: Sequence[int] | None = None,
        truncated: Sequence[bool] | None = None,
        weight_version: Sequence[int] | None = None,
        rollout_log_probs: Sequence[Sequence[float]] | None = None,
        top_p_token_ids: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> "RolloutBatch":
        """Join ragged lists, one entry a sample. Unset: every sample is a rollout of its own, none truncated, version 0."""
        n = len(tokens)
        if n == 0:
            raise ValueError("a rollout batch needs at least one sample")
        by_token: dict[str, Sequence[Sequence[Any]] | None] = {
            "loss_mask": loss_masks,
            "rollout_log_probs": rollout_log_probs,
            "top_p_token_ids": top_p_token_ids,
        }
        for name, ragged in by_token.items():
            if ragged is not None and [len(x) for x in ragged] != list(response_lengths):
                raise ValueError(f"column {name} does not have the lengths of the responses, sample by sample")
        kept = None if top_p_token_ids is None else [np.asarray(ids, dtype=np.int64) for s in top_p_token_ids for ids in s]
        return cls(
            tokens=np.concatenate([np.asarray(t, dtype=np.int64) for t in tokens]),
            token_offsets=_offsets([len(t) for t in tokens]),
            response_offsets=_offsets(response_lengths),
            loss_mask=np.concatenate([np.asarray(m, dtype=np.float32) for m in loss_masks]),
            reward=np.asarray(rewards, dtype=np.float32),
            sample_index=np.asarray(range(n) if sample_index is None else sample_index, dtype=np.int64),
            rollout_index=np.asarray(range(n) if rollout_index is None else rollout_index, dtype=np.int64),
            truncated=np.asarray([False] * n if truncated is None else truncated, dtype=np.bool_),
            weight_version=np.asarray([0] * n if weight_version is None else weight_version, dtype=np.int64),
            rollout_log_probs=None
            if rollout_log_probs is None
            else np.concatenate([np.asarray(x, dtype=np.float32) for x in rollout_log_probs]),
            top_p_token_ids=None if kept is None else np.concatenate([*kept, np.zeros(0, dtype=np.int64)]),
            top_p_offsets=None if kept is None else _offsets([len(ids) for ids in kept]),
        )

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.reward)

    @property
    def response_lengths(self) -> Ints:
        """[n] response tokens of each sample, masked ones included."""
        return np.diff(self.response_offsets)

    @property
    def total_lengths(self) -> Ints:
        """[n] tokens of each sample."""
        return np.diff(self.token_offsets)

    @property
    def prompt_lengths(self) -> Ints:
        """[n] tokens before each response."""
        return self.total_lengths - self.response_lengths

    @property
    def trainable_lengths(self) -> Ints:
        """[n] response tokens with a loss mask other than 0."""
        counted = np.concatenate([[0], np.cumsum(self.loss_mask != 0)])
        return np.diff(counted[self.response_offsets])

    @property
    def prompt_index(self) -> Ints:
        """[n] samples with the same prompt tokens have the same number, counted from 0 in the batch's order."""
        starts, stops = self.token_offsets[:-1], self.token_offsets[:-1] + self.prompt_lengths
        numbers: dict[bytes, int] = {}
        prompts = (self.tokens[a:b].tobytes() for a, b in zip(starts, stops, strict=True))
        return np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts], dtype=np.int64)

    @property
    def num_prompts(self) -> int:
        """How many different prompts there are."""
        return int(self.prompt_index.max()) + 1

    def trainable_tokens(self, samples: Sequence[int]) -> NDArray[np.bool_]:
        """[R] whether a response token belongs to one of these samples (positions in the batch) and has a loss mask."""
        chosen = np.zeros(len(self), dtype=np.bool_)
        chosen[list(samples)] = True
        trainable: NDArray[np.bool_] = np.repeat(chosen, self.response_lengths) & (self.loss_mask != 0)
        return trainable

    def sampled_from(self, responses: Ints) -> tuple[Ints, Ints] | None:
        """`top_p_token_ids` and `top_p_offsets` of these response tokens (positions), if the batch has them."""
        if self.top_p_token_ids is None or self.top_p_offsets is None:
            return None
        ids = self.top_p_token_ids[_spans(self.top_p_offsets, responses)]
        return ids, _offsets(np.diff(self.top_p_offsets)[responses])

    def take(self, samples: Ints) -> "RolloutBatch":
        """The batch of these samples (positions, each at most once), in this order."""
        token, response = _spans(self.token_offsets, samples), _spans(self.response_offsets, samples)
        parts: dict[str, Any] = {name: getattr(self, name)[samples] for name in SAMPLE_COLUMNS}
        parts |= {} if self.raw_reward is None else {"raw_reward": self.raw_reward[samples]}
        parts |= {n: c[response] for n in ("loss_mask", *RESPONSE_COLUMNS) if (c := getattr(self, n)) is not None}
        if (kept := self.sampled_from(response)) is not None:
            parts["top_p_token_ids"], parts["top_p_offsets"] = kept
        return RolloutBatch(
            tokens=self.tokens[token],
            token_offsets=_offsets(self.total_lengths[samples]),
            response_offsets=_offsets(self.response_lengths[samples]),
            **parts,
        )

    def with_columns(self, **columns: Any) -> "RolloutBatch":
        """The same batch with these columns set."""
        return replace(self, **columns)

    def column(self, name: str) -> Floats:
        """A response column that must be there by now."""
        column: Floats | None = getattr(self, name)
        assert column is not None, f"column {name} has not been computed yet"
        return column

    def tensor(self, name: str) -> Tensor:
        """A field as a tensor on the CPU: a copy, because a batch that came through Ray's store is read-only."""
        return torch.from_numpy(np.array(getattr(self, name)))


def _spans(offsets: Ints, rows: Ints) -> Ints:
    """The positions that belong to these rows of a jagged column, one row's after another's."""
    lengths = np.diff(offsets)[rows]
    starts = np.repeat(offsets[rows] - (np.cumsum(lengths) - lengths), lengths)
    spans: Ints = starts + np.arange(lengths.sum())
    return spans


def _offsets(lengths: Sequence[int] | Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
