"""All benchmarks, by the name that `--only` knows."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from tests.bench import against_trl, critic_passes, reduction, scaling, throughput
from tests.bench.setting import Setting
from tests.bench.table import Row, Skipped

Benchmark = Callable[[Setting], Iterable[Row]]


def _head(setting: Setting) -> Iterable[Row]:
    """The log-prob head brings settings of its own."""
    if find_spec("tests.bench.head") is None:
        raise Skipped("log-prob head: there is no tests/bench/head.py")
    rows: Iterable[Row] = import_module("tests.bench.head").rows()
    return rows


BENCHMARKS: dict[str, Benchmark] = {
    "trl": against_trl.rows,
    "throughput": throughput.rows,
    "scaling": scaling.rows,
    "critic-passes": critic_passes.rows,
    "reduction": reduction.rows,
    "head": _head,
}


def run(names: Iterable[str], setting: Setting) -> Iterator[Row | str]:
    """The rows of these benchmarks, and a line for each that can't be run here."""
    for name in names:
        try:
            yield from BENCHMARKS[name](setting)
        except Skipped as why:
            yield str(why)
