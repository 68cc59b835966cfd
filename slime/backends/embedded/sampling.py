"""Sampling parameters as SGLang spells them, and drawing a token for every row of a batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

# Below this, sampling is greedy (SGLang's threshold too): a logit divided by less could overflow.
GREEDY_BELOW = 1e-6


@dataclass(frozen=True)
class SamplingParams:
    """Of one request. Unknown names and values are refused rather than ignored."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        for name, (is_valid, wanted) in _VALUES.items():
            if not is_valid(getattr(self, name)):
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens is {self.min_new_tokens}, more than max_new_tokens, {self.max_new_tokens}")

    @classmethod
    def from_request(cls, params: Any) -> "SamplingParams":
        """Raises ValueError for names or values that can't be honoured."""
        if not isinstance(params, dict):
            raise ValueError(f"sampling_params must be an object, got {params!r}")
        unknown = set(params) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"sampling_params not supported here: {', '.join(sorted(unknown))}")
        return cls(**params)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list_of(is_valid: Callable[[Any], bool], values: Any) -> bool:
    return isinstance(values, list | tuple) and all(map(is_valid, values))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda v: _is_number(v) and 0 <= v < math.inf, "a number, at least 0"),
    "top_p": (lambda v: _is_number(v) and 0 < v <= 1, "a number in (0, 1]"),
    "top_k": (lambda v: _is_integer(v) and (v == -1 or v >= 1), "-1 (all), or an integer of at least 1"),
    "max_new_tokens": (lambda v: _is_integer(v) and v >= 0, "an integer, at least 0"),
    "min_new_tokens": (lambda v: _is_integer(v) and v >= 0, "an integer, at least 0"),
    "stop": (lambda v: v is None or _is_text(v) or _is_list_of(_is_text, v), "a string or a list of strings, none empty"),
    "stop_token_ids": (lambda v: v is None or _is_list_of(_is_integer, v), "a list of token ids"),
    "ignore_eos": (_is_flag, "true or false"),
    "skip_special_tokens": (_is_flag, "true or false"),
    "spaces_between_special_tokens": (_is_flag, "true or false"),
    "no_stop_trim": (_is_flag, "true or false"),
    "sampling_seed": (lambda v: v is None or _is_integer(v), "an integer"),
}


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
        greedy = temperature[:, 0] < GREEDY_BELOW
        top_k = [[min(p.top_k, vocabulary) if p.top_k > 0 else vocabulary] for p in params]
        return cls(
            temperature=torch.where(greedy[:, None], 1.0, temperature),
            greedy=greedy,
            top_p=torch.tensor([[p.top_p] for p in params], dtype=torch.float64, device=device),
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
