"""All benchmarks, by the name that `--only` knows."""

from collections.abc import Callable, Iterable, Iterator
from unittest.mock import patch

from tests.bench import against_trl, critic_passes, head, overlap, reduction, scaling, staleness, throughput
from tests.bench.setting import Setting
from tests.bench.table import Row, Skipped
from tests.bench.timing import threads

Benchmark = Callable[[Setting], Iterable[Row]]


def _head(setting: Setting) -> Iterable[Row]:
    """The log-prob head has sizes of its own, which a quick setting exchanges."""
    with threads(setting.threads), patch.multiple(head, **setting.head_sizes):
        return head.rows()


BENCHMARKS: dict[str, Benchmark] = {
    "trl": against_trl.rows,
    "throughput": throughput.rows,
    "scaling": scaling.rows,
    "critic-passes": critic_passes.rows,
    "overlap": overlap.rows,
    "reduction": reduction.rows,
    "staleness": staleness.rows,
    "head": _head,
}


def run(names: Iterable[str], setting: Setting) -> Iterator[Row | str]:
    """The rows of these benchmarks, and a line for each that can't be run here."""
    for name in names:
        try:
            yield from BENCHMARKS[name](setting)
        except Skipped as why:
            yield str(why)
