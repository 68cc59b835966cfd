"""slime eval: the numbers of training's own evaluation, without training."""

from pathlib import Path
from typing import Any

import pytest

from fsdp_backend.training.actor import Actor
from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def evaluation(inputs: Path) -> list[str]:
    words = ["--eval-prompt-data", "held", str(inputs / "prompts.jsonl"), "short", f"{inputs / 'prompts.jsonl'}@[0:3]"]
    return [*words, "--n-samples-per-eval-prompt", "4", "--eval-max-response-len", "5"]


def of_evaluation(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name.startswith("eval/")}


@pytest.fixture(scope="module")
def trained(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rollouts with evaluations before and after, saved in its folder's state."""
    folder = tmp_path_factory.mktemp("trained")
    flags = [*evaluation(inputs), "--eval-interval", "10", "--save", str(folder / "state")]
    assert run(ppo_flags(inputs, folder / "run", *flags)) == 0
    return folder


def test_a_checkpoint_is_evaluated_as_before_training(
    inputs: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Actor, "__init__", None)  # no trainer is built
    words = ["eval", "--launcher", "local", "--hf-checkpoint", str(inputs / "model"), *evaluation(inputs)]
    words += ["--apply-chat-template", "--custom-rm-path", "tests.end_to_end.runs.likes_one_letter"]
    assert run([*words, "--run-dir", str(tmp_path / "run")]) == 0
    (row,) = metrics_of(tmp_path / "run")
    assert row["rollout"] == 0
    assert of_evaluation(row) == of_evaluation(metrics_of(trained / "run")[0])
    assert row["time/evaluate"] > 0
    assert "Eval reward, held" in (tmp_path / "run" / "report.html").read_text()
    lines = capsys.readouterr().out.splitlines()
    (held,) = [line for line in lines if "held" in line and "│" in line]
    assert f"{row['eval/held/reward']:.4g}" in held


def test_the_actor_of_a_unit_is_evaluated_as_after_training_with_the_same_flags(
    inputs: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["eval", *ppo_flags(inputs, tmp_path / "run", *evaluation(inputs), "--load", str(trained / "state"))[1:]]
    assert run(flags) == 0
    (row,) = metrics_of(tmp_path / "run")
    last = metrics_of(trained / "run")[-1]
    assert row["rollout"] == last["rollout"] == 3
    assert of_evaluation(row) == of_evaluation(last) != of_evaluation(metrics_of(trained / "run")[0])
    assert "slime eval trains nothing" in capsys.readouterr().out


def test_a_unit_that_is_not_there_and_one_without_an_actor_are_named(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    words = ["eval", *ppo_flags(inputs, tmp_path / "run", *evaluation(inputs), "--load", str(state))[1:]]
    assert run(words) == 2
    assert f"{state} is no committed checkpoint and holds none" in capsys.readouterr().err
    alone = ["--num-rollout", "1", "--num-critic-only-steps", "1", "--save", str(state)]
    assert run(ppo_flags(inputs, tmp_path / "critic", *alone)) == 0
    assert run(words) == 2
    assert f"--load {state / 'rollout_000000'} has no actor: its policy is --hf-checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
