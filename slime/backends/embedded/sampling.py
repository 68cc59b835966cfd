"""Sampling parameters as SGLang spells them, and drawing a token for every row of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """Of one request. Unknown names are refused rather than ignored."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must not be negative, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise ValueError(f"top_k must be -1 (all) or at least 1, got {self.top_k}")
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must not be negative, got {self.max_new_tokens}")

    @classmethod
    def from_request(cls, params: dict[str, Any]) -> "SamplingParams":
        """Raises ValueError for names or values that can't be honoured."""
        unknown = set(params) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"sampling_params not supported here: {', '.join(sorted(unknown))}")
        return cls(**params)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@dataclass
class BatchSampler:
    """Sampling settings of B rows as tensors."""

    temperature: Tensor
    """[B, 1]; 1 for greedy rows."""
    greedy: Tensor
    """[B] bool."""
    top_p: Tensor
    """[B, 1]."""
    top_k: Tensor
    """[B, 1]; the vocabulary's size for all."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocabulary: int, device: torch.device) -> "BatchSampler":
        temperature = torch.tensor([[p.temperature] for p in params], device=device)
        top_k = [[p.top_k if p.top_k > 0 else vocabulary] for p in params]
        return cls(
            temperature=torch.where(temperature == 0, 1.0, temperature),
            greedy=temperature[:, 0] == 0,
            top_p=torch.tensor([[p.top_p] for p in params], device=device),
            top_k=torch.tensor(top_k, device=device),
        )

    def keep(self, rows: Tensor) -> "BatchSampler":
        """The settings of these rows."""
        return BatchSampler(self.temperature[rows], self.greedy[rows], self.top_p[rows], self.top_k[rows])

    def draw(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Pick a token a row by inverting its distribution's cumulative sum at `uniform` [B] in [0, 1).

        Args: logits [B, V]. Returns: tokens [B], and their log-probs [B] under the tempered distribution (before top-p and
        top-k, as in SGLang).
        """
        log_probs = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        kept = self._truncate(log_probs.double().exp())
        cumulative = kept.cumsum(-1)
        threshold = uniform[:, None].to(cumulative) * cumulative[:, -1:]
        sampled = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
        # Rounding can leave the threshold at the very end: the last token with any probability is meant.
        last = (kept > 0).long().cumsum(-1).argmax(-1)
        tokens = torch.where(self.greedy, log_probs.argmax(-1), torch.minimum(sampled, last))
        return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)

    def _truncate(self, probs: Tensor) -> Tensor:
        """Zero what top-p and top-k exclude; left alone where no row asks for either."""
        if bool((self.top_p >= 1).all()) and bool((self.top_k >= probs.shape[-1]).all()):
            return probs
        ordered, indices = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        rank = torch.arange(probs.shape[-1], device=probs.device)[None]
        excluded = (before >= self.top_p) | (rank >= self.top_k)
        return torch.zeros_like(probs).scatter(-1, indices, ordered.masked_fill(excluded, 0.0))
