"""The log-prob head against materialised logits: seconds and memory of forward and backward. `python -m tests.bench.head`.

Both run in this process, in turn. Memory is the peak of the bytes in tensors alive at once that forward and backward made,
without the weight's gradient, which both need; what a kernel allocates and frees within itself is not in it.
"""

import sys

import torch
from rich.console import Console
from torch import nn

from fsdp_backend.live_bytes import LiveBytes
from fsdp_backend.model.logprob_head import LogProbHead
from tests.bench.table import Row, fastest, rounds_of, show
from tests.bench.timing import alternate, timed

VOCABULARY, WIDTH = 151936, 576
TIMED_TOKENS = 2048
"""So many that three copies of their logits fit in a small machine."""
FULL_TOKENS = 8192
ROUNDS = 3
TEMPERATURE = 0.7


class _Problem:
    """One head, and both ways through it."""

    def __init__(self, tokens: int, vocabulary: int, width: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.head = LogProbHead(width, vocabulary, bias=False, dtype=dtype)
        self.hidden = torch.randn(tokens, width, dtype=dtype).requires_grad_()
        self.targets = torch.randint(vocabulary, (tokens,))

    def chunked(self) -> None:
        self._forget()
        self.head(self.hidden, self.targets, TEMPERATURE)[0].sum().backward()

    def materialised(self) -> None:
        self._forget()
        logits = nn.functional.linear(self.hidden, self.head.weight).float() / TEMPERATURE
        log_probs = torch.log_softmax(logits, -1)
        chosen = log_probs.gather(1, self.targets[:, None])
        with torch.no_grad():
            _entropy = -(log_probs.exp() * log_probs).sum(-1)
        chosen.sum().backward()  # type: ignore[no-untyped-call]

    def seconds(self) -> tuple[list[float], list[float]]:
        """Of every round: chunked, materialised."""
        chunked, materialised = alternate(ROUNDS, timed(self.chunked), timed(self.materialised))
        return chunked, materialised

    def _forget(self) -> None:
        self.head.weight.grad = self.hidden.grad = None


def rows() -> list[Row]:
    """Time at `TIMED_TOKENS`; memory at `FULL_TOKENS`, against the float32 logits alone."""
    chunked, materialised = _Problem(TIMED_TOKENS, VOCABULARY, WIDTH, torch.float32).seconds()
    ours, other = fastest(chunked), fastest(materialised)
    with LiveBytes() as live:
        full = _Problem(FULL_TOKENS, VOCABULARY, WIDTH, torch.float32)
        before = live.now()
        peak = (live.peak_of(full.chunked) - before - full.head.weight.nbytes) / 2**20
    logits = 4 * FULL_TOKENS * VOCABULARY / 2**20
    return [
        Row("head time / materialised", ours, other, ours / other, "≤ 1.0", rounds=rounds_of(chunked, materialised)),
        Row("head memory / materialised logits", peak, logits, peak / logits, "≤ 0.15", "MiB"),
    ]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    show(rows(), Console(highlight=False, markup=False))
