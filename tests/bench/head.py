"""The log-prob head against materialised logits: seconds and memory of forward and backward. `python -m tests.bench.head`.

Both run in this process, in turn. Memory is the peak of the bytes in tensors alive at once that forward and backward made,
without the weight's gradient, which both need; what a kernel allocates and frees within itself is not in it.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsdp_backend.model.logprob_head import LogProbHead
from tests.bench.table import Row, fastest, rounds_of, show
from tests.bench.timing import alternate, timed

VOCABULARY, WIDTH = 151936, 576
TIMED_TOKENS = 2048
"""So many that three copies of their logits fit in a small machine."""
FULL_TOKENS = 8192
ROUNDS = 3
TEMPERATURE = 0.7


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The peak of the bytes in storages that operations made; a storage of `ignored` bytes doesn't count."""

    def __init__(self, existing: list[Tensor], ignored: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._existing = {tensor.untyped_storage().data_ptr() for tensor in existing}
        self._ignored = ignored
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._existing and storage.nbytes() != self._ignored:
                    reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self._alive[reference.cdata] = (reference, storage.nbytes())
        self._alive = {key: (r, size) for key, (r, size) in self._alive.items() if not r.expired()}  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return made


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

    def peak(self, way: Callable[[], None]) -> int:
        self._forget()
        live = LiveBytes([self.hidden, self.head.weight, self.targets], self.head.weight.nbytes)
        with live:
            way()
        return live.peak

    def _forget(self) -> None:
        self.head.weight.grad = self.hidden.grad = None


def measure(tokens: int, vocabulary: int, width: int, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Forward and backward of `tokens` tokens, both ways: the fastest round's seconds, and bytes."""
    problem = _Problem(tokens, vocabulary, width, dtype)
    chunked, materialised = problem.seconds()
    return {
        "head seconds": fastest(chunked),
        "materialised seconds": fastest(materialised),
        "head bytes": problem.peak(problem.chunked),
        "materialised bytes": problem.peak(problem.materialised),
        "logits bytes": 4 * tokens * vocabulary,
    }


def rows() -> list[Row]:
    """Time at `TIMED_TOKENS`; memory at `FULL_TOKENS`, against the float32 logits alone."""
    chunked, materialised = _Problem(TIMED_TOKENS, VOCABULARY, WIDTH, torch.float32).seconds()
    ours, other = fastest(chunked), fastest(materialised)
    full = _Problem(FULL_TOKENS, VOCABULARY, WIDTH, torch.float32)
    peak, logits = full.peak(full.chunked) / 2**20, 4 * FULL_TOKENS * VOCABULARY / 2**20
    return [
        Row("head time / materialised", ours, other, ours / other, "≤ 1.0", rounds=rounds_of(chunked, materialised)),
        Row("head memory / materialised logits", peak, logits, peak / logits, "≤ 0.15", "MiB"),
    ]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    show(rows(), Console(highlight=False, markup=False))
