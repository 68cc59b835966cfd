"""The language-model head that yields log-probs of given tokens, and never a [tokens, vocabulary] matrix.

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

# Two float32 chunks stay in a CPU's caches; matrix products are no faster in larger ones.
TOKENS_PER_CHUNK = 1024
VOCABULARY_PER_CHUNK = 4096

# e^_FLOOR is 0 in every dtype, and so is _FLOOR times that, where -inf times 0 is NaN.
_FLOOR = -1e4


@dataclass(frozen=True)
class KeptTokens:
    """The part of the vocabulary that each token was sampled from (top-p, top-k): `ids[offsets[t] : offsets[t + 1]]` for token t."""

    ids: Tensor
    """[N] int64. Order and repetition within a token do not matter."""
    offsets: Tensor
    """[T + 1] int64, from 0 to N."""


class LogProbHead(nn.Linear):
    """An `nn.Linear` from hidden states to vocabulary, so that FSDP's hooks fire, called with the tokens to look up.

    `TOKENS_PER_CHUNK` times `VOCABULARY_PER_CHUNK` logits are alive at a time, and their exponentials. Matrix products run in the
    dtype of the parameters; statistics, and sums of gradients over chunks, are float32 (float64 for float64 parameters).
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
        carries a gradient only with `entropy_grad`.
        """
        result: tuple[Tensor, Tensor] = _LogProbAndEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, self.bias, targets, 1 / temperature, entropy_grad, kept
        )
        return result


class _LogProbAndEntropy(torch.autograd.Function):
    """Keeps three numbers a token for backward: with x = z - max z, they are max z, the sum of e^x, and the mean of x under p."""

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
        target_logit = torch.full_like(maximum, torch.nan)  # and so it stays for a target outside the vocabulary
        total, weighted = torch.zeros_like(maximum), torch.zeros_like(maximum)  # sums of e^x and of x e^x so far
        for columns in _slices(len(weight), VOCABULARY_PER_CHUNK):
            for rows in _slices(len(hidden), TOKENS_PER_CHUNK):
                z = chunks.logits(rows, columns)
                at, here = chunks.targets_in(rows, columns)
                target_logit[rows] = torch.where(here, z.gather(1, at), target_logit[rows, None]).squeeze(1)

                new_maximum = torch.maximum(maximum[rows], z.amax(1))
                shift = (maximum[rows] - new_maximum).clamp_(min=_FLOOR)
                maximum[rows] = new_maximum
                weighted[rows].addcmul_(total[rows], shift).mul_(shift.exp())
                total[rows].mul_(shift.exp())

                x, exponential = chunks.exponential(z, new_maximum)
                total[rows].add_(exponential.sum(1))
                weighted[rows].add_(x.mul_(exponential).sum(1))
        mean = weighted / total
        ctx.save_for_backward(hidden, weight, bias, targets, maximum, total, mean)
        ctx.scale, ctx.entropy_grad, ctx.cells = scale, entropy_grad, cells
        log_probs, entropy = target_logit - maximum - total.log(), total.log() - mean
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_log_probs: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, maximum, total, mean = ctx.saved_tensors
        chunks = _Chunks(hidden, weight, bias, targets, ctx.scale, ctx.cells)
        # log p + H = x - mean, so the gradient by a logit is onehot * target_term + e^x * (intercept + slope * x).
        target_term = by_log_probs * ctx.scale
        slope = -by_entropy * ctx.scale / total if ctx.entropy_grad else None
        intercept = -target_term / total if slope is None else -target_term / total - slope * mean
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        by_hidden = torch.zeros_like(hidden, dtype=chunks.dtype) if needs_hidden else None
        by_weight = torch.empty_like(weight) if needs_weight else None
        by_bias = torch.zeros_like(bias, dtype=chunks.dtype) if needs_bias else None
        for columns in _slices(len(weight), VOCABULARY_PER_CHUNK):
            weight_sum = None if by_weight is None else _zeros_in(by_weight[columns], chunks.dtype)
            for rows in _slices(len(hidden), TOKENS_PER_CHUNK):
                x, by_logits = chunks.exponential(chunks.logits(rows, columns), maximum[rows])
                factor = intercept[rows, None] if slope is None else x.mul_(slope[rows, None]).add_(intercept[rows, None])
                by_logits.mul_(factor)
                at, here = chunks.targets_in(rows, columns)
                by_logits.scatter_(1, at, by_logits.gather(1, at) + here * target_term[rows, None])
                if by_bias is not None:
                    by_bias[columns].add_(by_logits.sum(0))
                by_logits = chunks.as_operand(by_logits)
                if by_hidden is not None:
                    _add_product(by_hidden[rows], by_logits, weight[columns])
                if weight_sum is not None:
                    _add_product(weight_sum, by_logits.t(), hidden[rows])
            if by_weight is not None and weight_sum is not None and weight_sum.dtype != weight.dtype:
                by_weight[columns] = weight_sum
        return (
            None if by_hidden is None else by_hidden.to(hidden.dtype),
            by_weight,
            None if by_bias is None or bias is None else by_bias.to(bias.dtype),
            *[None] * 4,
        )


class _Chunks:
    """Logits of a slice of the tokens by a slice of the vocabulary, each in the memory of the one before."""

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
        added, factor = (product, 0.0) if self.bias is None else (self.bias[columns], self.scale)
        torch.addmm(added, self.hidden[rows], self.weight[columns].t(), beta=factor, alpha=self.scale, out=product)
        if self._operand is not self._logits:
            z.copy_(product)
        if self.kept is not None:
            at = self.kept.within(rows, columns)
            kept = z[at]
            z.fill_(-torch.inf)
            z[at] = kept
        return z

    def targets_in(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Both [rows, 1]: the target's place in this chunk's columns, and whether it is in them at all (else any place)."""
        targets = self.targets[rows, None]
        return (targets - columns.start).clamp(0, columns.stop - columns.start - 1), (columns.start <= targets) & (
            targets < columns.stop
        )

    def exponential(self, z: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        """x = z - maximum, in place of z, and e^x."""
        x = z.sub_(maximum[:, None]).clamp_(min=_FLOOR)
        return x, torch.exp(x, out=_shaped(self._exponential, z.shape))

    def as_operand(self, chunk: Tensor) -> Tensor:
        """The chunk in the dtype of the parameters."""
        return chunk if chunk.dtype == self._operand.dtype else _shaped(self._operand, chunk.shape).copy_(chunk)


class _KeptCells:
    """The kept entries and the targets, sorted by the chunk that they are in."""

    def __init__(self, kept: KeptTokens, targets: Tensor, vocabulary: int) -> None:
        if len(kept.offsets) != len(targets) + 1:
            raise ValueError(
                f"kept tokens: {len(kept.offsets)} offsets for {len(targets)} tokens; one more than tokens is needed"
            )
        tokens = torch.arange(len(targets), device=targets.device)
        rows = torch.cat([tokens.repeat_interleave(kept.offsets.diff(), output_size=len(kept.ids)), tokens])
        ids = torch.cat([kept.ids, targets])
        if bool(((ids < 0) | (ids >= vocabulary)).any()):
            raise ValueError(f"kept tokens: an id is outside the vocabulary of {vocabulary}")
        self._across = -(-len(targets) // TOKENS_PER_CHUNK)
        cell, order = (ids // VOCABULARY_PER_CHUNK * self._across + rows // TOKENS_PER_CHUNK).sort()
        self._rows, self._ids = rows[order] % TOKENS_PER_CHUNK, ids[order] % VOCABULARY_PER_CHUNK
        cells = self._across * -(-vocabulary // VOCABULARY_PER_CHUNK)
        self._bounds: list[int] = torch.searchsorted(cell, torch.arange(cells + 1, device=cell.device)).tolist()

    def within(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Where in this chunk they are."""
        cell = columns.start // VOCABULARY_PER_CHUNK * self._across + rows.start // TOKENS_PER_CHUNK
        of_cell = slice(self._bounds[cell], self._bounds[cell + 1])
        return self._rows[of_cell], self._ids[of_cell]


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _shaped(memory: Tensor, shape: tuple[int, ...]) -> Tensor:
    return memory[: shape[0] * shape[1]].view(shape)


def _zeros_in(memory: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros of this dtype: in that memory where it has it, else in new."""
    return memory.zero_() if memory.dtype == dtype else torch.zeros_like(memory, dtype=dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, summed in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
