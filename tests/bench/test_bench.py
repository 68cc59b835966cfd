"""The benchmarks run and yield their rows. What they measure is asserted nowhere: a test's machine is not a quiet one."""

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import flops
from tests.bench.setting import Setting, make_batch, quick, repeated, save_model
from tests.bench.suite import BENCHMARKS, run
from tests.bench.table import Row, show, write

ROWS = {
    "throughput": [
        "actor update: useful FLOP/s / GEMM",
        "critic update: useful FLOP/s / GEMM",
        "whole iteration: useful FLOP/s / GEMM",
    ],
    "scaling": ["time(2n) / time(n)", "2 ranks / 1 rank, speed-up"],
    "critic-passes": ["K → K + 1 / forward + backward"],
    "overlap": ["rollout with K = 2 / K = 1, critic apart"],
    "reduction": ["deferred / immediate gradient reduction"],
    "staleness": ["rollouts an hour, --max-staleness 1 / 0", "rollouts an hour, --max-staleness 4 / 0"],
    "head": ["head time / materialised", "head memory / materialised logits"],
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    setting = quick(str(tmp_path_factory.mktemp("model")), threads=1)
    save_model(setting)
    return setting


def test_every_benchmark_is_run_here_but_the_one_that_needs_trl() -> None:
    assert set(BENCHMARKS) == {*ROWS, "trl"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_quick_run_yields_its_rows(name: str, setting: Setting) -> None:
    rows = [found for found in run([name], setting) if isinstance(found, Row)]
    assert [row.name for row in rows] == ROWS[name]
    assert all(math.isfinite(row.ratio) for row in rows)


def test_the_same_lengths_are_mixed_whatever_the_seed_with_a_long_tail(setting: Setting) -> None:
    one, other = (make_batch(Setting("", 1, seed=seed)) for seed in (0, 1))
    assert sorted(one.response_lengths) == sorted(other.response_lengths)
    assert one.response_lengths.tolist() != other.response_lengths.tolist()
    assert one.response_lengths.max() > 3 * one.response_lengths.mean()
    assert make_batch(setting).tokens.min() > 1


def test_a_repeated_batch_is_exactly_so_much_work(setting: Setting) -> None:
    batch = make_batch(setting)
    twice = repeated(batch, 2)
    assert twice.tokens.tolist() == 2 * batch.tokens.tolist()
    assert flops.policy_flops(setting.shape, twice) == 2 * flops.policy_flops(setting.shape, batch)


def test_useful_flops_are_two_a_weight_and_token_and_four_a_pair_and_head_unit(setting: Setting) -> None:
    # Two layers of: q 32x32, k and v 32x16, o 32x32, three MLP matrices of 32x64. Four heads of 8.
    batch = make_batch(setting)
    weights = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64
    pairs = sum(n * (n + 1) // 2 for n in batch.total_lengths.tolist())
    blocks = 2 * (2 * weights * len(batch.tokens) + 4 * 32 * pairs)
    assert flops.policy_flops(setting.shape, batch) == blocks + 2 * 32 * 64 * len(batch.loss_mask)
    assert flops.value_flops(setting.shape, batch) == blocks + 2 * 32 * len(batch.loss_mask)


def test_the_table_is_printed_and_written(tmp_path: Path) -> None:
    rows = [Row("a / b", 2.0, 1.0, 0.5, "≤ 1", rounds=((2.0,), (1.0,)))]
    console = Console(record=True, width=120)
    show(rows, console)
    write(rows, ["c: no c here"], {"machine": "m"}, tmp_path)
    assert "0.500" in console.export_text()
    assert json.loads((tmp_path / "bench.json").read_text())["rows"][0]["ratio"] == 0.5
    markdown = (tmp_path / "bench.md").read_text()
    assert "| a / b | 2 | 1 | s | 0.500 | ≤ 1 |" in markdown
    assert "- skipped: c: no c here" in markdown
