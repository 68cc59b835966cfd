"""Decoding a batch of prompts, token by token, over transformers' model and KV cache."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from slime.backends.embedded.sampling import BatchSampler, SamplingParams


@dataclass
class Generation:
    """One request: what was asked, and what has been generated so far."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    """SGLang's: {"type": "stop" | "length" | "abort", …}; None while running."""
    weight_version: str = ""
    """Version that generated the last token."""


class BatchDecoder:
    """Left-pads the prompts to one rectangle, and drops rows from it as they finish."""

    def __init__(
        self, model: Any, batch: list[Generation], is_finished: Callable[[Generation], bool], draw_seed: Callable[[], int]
    ) -> None:
        self.model, self.batch, self.is_finished = model, batch, is_finished
        device = model.device
        vocabulary = model.get_output_embeddings().weight.shape[0]
        self.sampler = BatchSampler.of([g.params for g in batch], vocabulary, device)
        self.uniforms = [_uniforms(g.params, draw_seed) for g in batch]
        width = max(len(g.prompt) for g in batch)
        self.inputs = torch.tensor([[0] * (width - len(g.prompt)) + g.prompt for g in batch], device=device)
        self.mask = torch.tensor([[0] * (width - len(g.prompt)) + [1] * len(g.prompt) for g in batch], device=device)
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        self.cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def step(self, weight_version: str) -> None:
        """Generate the next token of every unfinished request."""
        output = self.model(
            input_ids=self.inputs,
            attention_mask=self.mask,
            position_ids=self.positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        uniform = torch.tensor([u[len(g.tokens)] for u, g in zip(self.uniforms, self.batch, strict=True)], dtype=torch.float64)
        tokens, log_probs = self.sampler.draw(output.logits[:, -1], uniform.to(output.logits.device))
        for generation, token, log_prob in zip(self.batch, tokens.tolist(), log_probs.tolist(), strict=True):
            generation.tokens.append(token)
            generation.log_probs.append(log_prob)
            generation.weight_version = weight_version
        self.inputs = tokens[:, None]
        self.positions = self.positions[:, -1:] + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.batch), 1)], dim=-1)
        self._drop_finished()

    def _drop_finished(self) -> None:
        rows = [i for i, g in enumerate(self.batch) if not self.is_finished(g)]
        if len(rows) == len(self.batch):
            return
        self.batch = [self.batch[i] for i in rows]
        self.uniforms = [self.uniforms[i] for i in rows]
        if not rows:
            return
        kept: Tensor = torch.tensor(rows, device=self.inputs.device)
        self.sampler = self.sampler.keep(kept)
        self.inputs, self.positions, self.mask = self.inputs[kept], self.positions[kept], self.mask[kept]
        self.cache.batch_select_indices(kept)


def _uniforms(params: SamplingParams, draw_seed: Callable[[], int]) -> list[float]:
    """A number in [0, 1) for each token that may come. They depend on the request's own seed alone, not on its batch."""
    seed = draw_seed() if params.sampling_seed is None else params.sampling_seed
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(params.max_new_tokens, generator=generator, dtype=torch.float64).tolist()
