"""Runs with advantages and returns of one's own."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, repeatable, run
from tests.slime.backends.fsdp_utils import advantages

HERE = advantages.__name__


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def assert_close(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for row, other in zip(rows, others, strict=True):
        known, same = ({name: value for name, value in each.items() if value is not None} for each in (row, other))
        assert same == pytest.approx(known, rel=1e-3, abs=1e-5)


def test_a_function_that_does_what_gae_does_trains_both_roles_as_gae_does(inputs: Path, tmp_path: Path) -> None:
    advantages.calls.clear()
    flags = ["--num-critic-only-steps", "1", "--normalize-advantages"]
    assert run(ppo_flags(inputs, tmp_path / "built_in", *flags)) == 0
    own = ["--custom-advantage-function-path", f"{HERE}.without_discount"]
    assert run(ppo_flags(inputs, tmp_path / "own", *flags, *own)) == 0
    built_in, custom = (repeatable(metrics_of(tmp_path / name)) for name in ("built_in", "own"))
    assert len(built_in) == len(custom) == len(advantages.calls) == 3
    assert_close(built_in, custom)
    # The critic's first rollout trains nobody who has log-probs.
    assert ["log_probs" in data for _, data in advantages.calls] == [False, True, True]
    assert "raw_reward" in advantages.calls[0][1]


def test_the_actor_trains_on_the_functions_advantages_and_the_critic_on_its_returns(inputs: Path, tmp_path: Path) -> None:
    own = ["--custom-advantage-function-path", f"{HERE}.constant"]
    assert run(ppo_flags(inputs, tmp_path / "run", *own)) == 0
    rows = metrics_of(tmp_path / "run")
    assert [row["train/grad_norm"] for row in rows] == [0, 0, 0]
    for row in rows:
        assert row["train/critic-pass_2/returns_mean"] == 7


def test_log_probs_are_there_where_the_actor_takes_a_single_step_too(inputs: Path, tmp_path: Path) -> None:
    flags = ["--advantage-estimator", "grpo", "--num-steps-per-rollout", "1", "--num-rollout", "2"]
    words = [word for word in " ".join(ppo_flags(inputs, Path("DIR"), *flags)).replace("--global-batch-size 4", "").split()]
    own = ["--custom-advantage-function-path", f"{HERE}.group_relative"]
    for name, more in (("built_in", []), ("own", own)):
        assert run([*words, *more, "--run-dir", str(tmp_path / name)]) == 0
    built_in, custom = (repeatable(metrics_of(tmp_path / name)) for name in ("built_in", "own"))
    assert_close(built_in, custom)
