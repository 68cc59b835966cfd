"""The language-model head that yields log-probs of given tokens without a [tokens, vocabulary] matrix.

It goes through chunks of the vocabulary and of the tokens: forward with an online log-sum-exp (Milakov and Gimelshein, arXiv
1805.02867), backward with the logits computed again. With z the tempered logits of a token, p their softmax, H its entropy:

    d log p[target] / dz = onehot(target) - p          dH / dz = -p (log p + H)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# On a CPU a quarter of this is as fast, more leaves the caches; an accelerator waits for kernel launches if chunks are small.
TOKENS_PER_CHUNK = 1024
VOCABULARY_PER_CHUNK = 4096

# Its exponential is 0 in every dtype, and so is their product, while -inf times 0 is NaN.
_FLOOR = -1e4


@dataclass(frozen=True)
class KeptTokens:
    """What of the vocabulary each token was sampled from (top-p, top-k): token t from `ids[offsets[t] : offsets[t + 1]]`."""

    ids: Tensor
    """[N] int64. Order and repetition within a token do not matter."""
    offsets: Tensor
    """[T + 1] int64, from 0 to N."""


class LogProbHead(nn.Linear):
    """An `nn.Linear` from hidden states to vocabulary, so that FSDP's hooks fire, called with the tokens to look up.

    `TOKENS_PER_CHUNK` times `VOCABULARY_PER_CHUNK` logits are alive at a time, with their exponentials. Matrix products run in
    the dtype of the parameters; statistics, and sums of gradients over chunks, are float32 (float64 for float64 parameters).
    """

    @classmethod
    def of(cls, linear: nn.Linear) -> "LogProbHead":
        """The same head, sharing the very parameters of `linear` (a tied embedding stays tied)."""
        head = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        head.weight = linear.weight
        head.bias = linear.bias
        return head

    def forward(  # type: ignore[override]
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool = False, kept: KeptTokens | None = None
    ) -> tuple[Tensor, Tensor]:
        """Args: hidden [T, H] of the parameters' dtype; targets [T] int64. The logits are divided by `temperature`.

        With `kept`, all but a token's kept entries have probability 0. The target always counts as kept, as in slime: it was
        sampled, whatever rounding says of the set. An empty set leaves the target alone: log-prob 0, and no gradient.
        Unlike slime's, the entropy too is that of the kept entries; for slime's, call again without `kept`.

        Returns: log-probs of the targets and entropy in nats, both [T] float32 (float64 for float64 input). The entropy
        carries a gradient only with `entropy_grad`. A target outside the vocabulary gives NaN, or, with `kept`, an error.
        """
        return _LogProbAndEntropy.apply(  # type: ignore[no-any-return, no-untyped-call]
            hidden, self.weight, self.bias, targets, 1 / temperature, entropy_grad, kept
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, vocabulary] in float32, all at once and not tempered: for a loss that can't do with less."""
        return nn.functional.linear(hidden, self.weight, self.bias).to(torch.promote_types(hidden.dtype, torch.float32))


class _LogProbAndEntropy(torch.autograd.Function):
    """With x = z - max z, three numbers a token are kept for backward: max z, the sum of e^x, and the mean of x under p."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        entropy_grad: bool,
        kept: KeptTokens | None,
    ) -> tuple[Tensor, Tensor]:
        cells = None if kept is None else _KeptCells(kept, targets, len(weight))
        chunks = _Chunks(hidden, weight, bias, targets, scale, cells)
        maximum = hidden.new_full(targets.shape, torch.finfo(chunks.dtype).min, dtype=chunks.dtype)
        target_logit = torch.full_like(maximum, torch.nan)
        total, weighted = torch.zeros_like(maximum), torch.zeros_like(maximum)  # sums of e^x and of x e^x so far
        for columns in _slices(len(weight), VOCABULARY_PER_CHUNK):
            for rows in _slices(len(hidden), TOKENS_PER_CHUNK):
                z = chunks.logits(rows, columns)
                at, here = chunks.targets_in(rows, columns)
                target_logit[rows] = torch.where(here, z.gather(1, at), target_logit[rows, None]).squeeze(1)

                old_maximum = maximum[rows].clone()
                torch.maximum(old_maximum, z.amax(1), out=maximum[rows])
                shift = (old_maximum - maximum[rows]).clamp_(min=_FLOOR)
                weighted[rows].addcmul_(total[rows], shift).mul_(shift.exp())
                total[rows].mul_(shift.exp())

                x, exponential = chunks.exponential(z, maximum[rows])
                total[rows].add_(exponential.sum(1))
                weighted[rows].add_(x.mul_(exponential).sum(1))
        mean = weighted / total
        ctx.save_for_backward(hidden, weight, bias, targets, maximum, total, mean)
        ctx.scale, ctx.cells, ctx.entropy_grad = scale, cells, entropy_grad
        log_probs, entropy = target_logit - maximum - total.log(), total.log() - mean
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, maximum, total, mean = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        chunks = _Chunks(hidden, weight, bias, targets, ctx.scale, ctx.cells)
        # log p + H = x - mean, so a logit's gradient is onehot * target_term + e^x * (slope * x + intercept).
        target_term = grad_log_probs * ctx.scale
        slope = -grad_entropy * ctx.scale / total if ctx.entropy_grad else None
        intercept = -target_term / total - (0 if slope is None else slope * mean)
        grad_hidden = torch.zeros_like(hidden, dtype=chunks.dtype)
        grad_weight = torch.empty_like(weight if needs_weight else weight[:0])
        grad_bias = weight.new_zeros(len(weight), dtype=chunks.dtype)
        for columns in _slices(len(weight), VOCABULARY_PER_CHUNK):
            weight_sum = grad_weight[columns].to(chunks.dtype).zero_()  # the slice itself where the dtype is the same
            for rows in _slices(len(hidden), TOKENS_PER_CHUNK):
                x, grad_logits = chunks.exponential(chunks.logits(rows, columns), maximum[rows])
                factor = intercept[rows, None] if slope is None else x.mul_(slope[rows, None]).add_(intercept[rows, None])
                grad_logits.mul_(factor)
                at, here = chunks.targets_in(rows, columns)
                grad_logits.scatter_(1, at, grad_logits.gather(1, at) + here * target_term[rows, None])
                if needs_bias:
                    grad_bias[columns].add_(grad_logits.sum(0))
                operand = chunks.as_operand(grad_logits)
                if needs_hidden:
                    _add_product(grad_hidden[rows], operand, weight[columns])
                if needs_weight:
                    _add_product(weight_sum, operand.t(), hidden[rows])
            if weight_sum.dtype != grad_weight.dtype:
                grad_weight[columns] = weight_sum
        gradients = grad_hidden.to(hidden.dtype), grad_weight, grad_bias.to(weight.dtype)
        needed = (needs_hidden, needs_weight, needs_bias)
        return *(g if n else None for g, n in zip(gradients, needed, strict=True)), None, None, None, None


class _Chunks:
    """The logits of a slice of the tokens by a slice of the vocabulary, each chunk in the memory of the one before."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, kept: "_KeptCells | None"
    ) -> None:
        self.hidden, self.weight, self.bias, self.targets, self.scale, self.kept = hidden, weight, bias, targets, scale, kept
        self.dtype = torch.promote_types(hidden.dtype, torch.float32)
        size = min(len(hidden), TOKENS_PER_CHUNK) * min(len(weight), VOCABULARY_PER_CHUNK)
        self._logits = hidden.new_empty(size, dtype=self.dtype)
        self._exponential = torch.empty_like(self._logits)
        self._operand = self._logits if hidden.dtype == self.dtype else hidden.new_empty(size)

    def logits(self, rows: slice, columns: slice) -> Tensor:
        """[rows, columns] tempered logits, -inf where not kept."""
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        product, z = _shaped(self._operand, shape), _shaped(self._logits, shape)
        added, beta = (product, 0.0) if self.bias is None else (self.bias[columns], self.scale)
        torch.addmm(added, self.hidden[rows], self.weight[columns].t(), beta=beta, alpha=self.scale, out=product)
        if self._operand is not self._logits:
            z.copy_(product)
        if self.kept is not None:
            at = self.kept.within(rows, columns)
            kept = z[at]
            z.fill_(-torch.inf)
            z[at] = kept
        return z

    def targets_in(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Both [rows, 1]: the target's place among these columns, and whether it is among them at all (any place if not)."""
        targets = self.targets[rows, None]
        here = (targets >= columns.start) & (targets < columns.stop)
        return (targets - columns.start).clamp_(0, columns.stop - columns.start - 1), here

    def exponential(self, z: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        """x = z - maximum, in the place of z, and e^x."""
        x = z.sub_(maximum[:, None]).clamp_(min=_FLOOR)
        return x, torch.exp(x, out=_shaped(self._exponential, z.shape))

    def as_operand(self, chunk: Tensor) -> Tensor:
        """The chunk in the dtype of the parameters."""
        return chunk if chunk.dtype == self._operand.dtype else _shaped(self._operand, chunk.shape).copy_(chunk)


class _KeptCells:
    """The kept entries, targets among them, sorted by chunk."""

    def __init__(self, kept: KeptTokens, targets: Tensor, vocabulary: int) -> None:
        tokens = torch.arange(len(targets), device=targets.device)
        rows = torch.cat([tokens.repeat_interleave(kept.offsets.diff(), output_size=len(kept.ids)), tokens])
        ids = torch.cat([kept.ids, targets])
        if bool(((ids < 0) | (ids >= vocabulary)).any()):
            raise ValueError(f"a kept token or a target is outside the vocabulary of {vocabulary}")
        self._across = -(-len(targets) // TOKENS_PER_CHUNK)
        cell, order = (ids // VOCABULARY_PER_CHUNK * self._across + rows // TOKENS_PER_CHUNK).sort()
        self._at = rows[order] % TOKENS_PER_CHUNK, ids[order] % VOCABULARY_PER_CHUNK
        every_cell = torch.arange(self._across * -(-vocabulary // VOCABULARY_PER_CHUNK) + 1, device=cell.device)
        self._begin: list[int] = torch.searchsorted(cell, every_cell).tolist()

    def within(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Their places in this chunk: rows and columns."""
        cell = columns.start // VOCABULARY_PER_CHUNK * self._across + rows.start // TOKENS_PER_CHUNK
        here = slice(self._begin[cell], self._begin[cell + 1])
        return self._at[0][here], self._at[1][here]


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _shaped(memory: Tensor, shape: tuple[int, ...]) -> Tensor:
    return memory[: shape[0] * shape[1]].view(shape)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total += a @ b, summed in the dtype of `total`."""
    return total.addmm_(a, b) if total.dtype == a.dtype else total.add_(a @ b)
