"""Decoding a batch of prompts, token by token, over transformers' model and KV cache."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from slime.backends.embedded.sampling import BatchSampler, SamplingParams


@dataclass
class Generation:
    """One request: what was asked, and what has been generated so far."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    end_ids: frozenset[int] = frozenset()
    """Token ids that end the response; not drawn before min_new_tokens."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    """SGLang's: {"type": "stop" | "length" | "abort", …}; None while running."""
    weight_version: str = ""
    """Version that generated the last token."""


class BatchDecoder:
    """Left-pads the prompts to one rectangle. Rows that have a finish reason leave it by `drop_finished`."""

    def __init__(self, model: Any, batch: Sequence[Generation], seeds: random.Random) -> None:
        """`seeds` gives a seed to each request that brings none."""
        self.model, self.batch = model, list(batch)
        device = model.device
        self.vocabulary = model.get_output_embeddings().weight.shape[0]
        self.sampler = BatchSampler.of([g.params for g in batch], self.vocabulary, device)
        self.seeds = np.array([_seed(g.params, seeds) for g in batch], dtype=np.uint64)
        width = max(len(g.prompt) for g in batch)
        self.inputs = torch.tensor([[0] * (width - len(g.prompt)) + g.prompt for g in batch], device=device)
        self.mask = torch.tensor([[0] * (width - len(g.prompt)) + [1] * len(g.prompt) for g in batch], device=device)
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        self.cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def step(self, weight_version: str) -> None:
        """Generate the next token of every row."""
        output = self.model(
            input_ids=self.inputs,
            attention_mask=self.mask,
            position_ids=self.positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = self._without_early_ends(output.logits[:, -1].float())
        positions = np.array([len(g.prompt) + len(g.tokens) for g in self.batch], dtype=np.uint64)
        uniform = torch.from_numpy(uniform_at(self.seeds, positions))
        tokens, log_probs = self.sampler.draw(logits, uniform.to(logits.device))
        if not bool(log_probs.isfinite().all()):
            raise ArithmeticError(f"the model's logits are not finite (weight version {weight_version})")
        for generation, token, log_prob in zip(self.batch, tokens.tolist(), log_probs.tolist(), strict=True):
            generation.tokens.append(token)
            generation.log_probs.append(log_prob)
            generation.weight_version = weight_version
        self.inputs = tokens[:, None]
        self.positions = self.positions[:, -1:] + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.batch), 1)], dim=-1)

    def _without_early_ends(self, logits: Tensor) -> Tensor:
        early = [(row, g.end_ids) for row, g in enumerate(self.batch) if len(g.tokens) < g.params.min_new_tokens]
        for row, end_ids in early:
            logits[row, [token for token in end_ids if 0 <= token < self.vocabulary]] = -torch.inf
        return logits

    def drop_finished(self) -> None:
        """Take the rows that have a finish reason out of the batch."""
        rows = [i for i, g in enumerate(self.batch) if g.finish_reason is None]
        if len(rows) == len(self.batch):
            return
        self.batch = [self.batch[i] for i in rows]
        self.seeds = self.seeds[rows]
        kept: Tensor = torch.tensor(rows, dtype=torch.long, device=self.inputs.device)
        self.sampler = self.sampler.keep(kept)
        self.inputs, self.positions, self.mask = self.inputs[kept], self.positions[kept], self.mask[kept]
        if self.cache.get_seq_length() > 0:
            self.cache.batch_select_indices(kept)


def uniform_at(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, from its seed and the position of the token to draw and nothing else. So what a row
    draws depends neither on its batch nor on whether an earlier request began the response, as in SGLang.

    splitmix64 (Steele, Lea and Flood 2014) at the position-th step of a stream that begins at the mixed seed.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    mixed = _mix(_mix(seeds + step) + positions * step)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


def _seed(params: SamplingParams, seeds: random.Random) -> int:
    return seeds.getrandbits(31) if params.sampling_seed is None else params.sampling_seed % 2**64
