"""Generation ahead of training: how old tokens may be, and that nothing is lost, taken twice or changed by stopping."""

from pathlib import Path

import numpy as np
import pytest
import torch

from slime.observability.timeline import read_timeline
from slime.rollout.manager import RolloutManager
from slime.saver import Saver
from tests.end_to_end.runs import assert_same_outcome, make_inputs, metrics_of, ppo_flags, run

ROLLOUTS = 5


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def flags(inputs: Path, folder: Path, staleness: int, *extra: str) -> list[str]:
    words = ["--num-rollout", str(ROLLOUTS), "--max-staleness", str(staleness), "--save", str(folder / "state")]
    words += ["--save-interval", "1", "--save-debug-rollout-data", str(folder / "rollouts" / "{rollout_id}.pt")]
    return ppo_flags(inputs, folder / "run", *words, *extra)


def samples(folder: Path, name: str) -> list[list[object]]:
    """A field of every sample, by rollout."""
    files = [folder / "rollouts" / f"{rollout_id}.pt" for rollout_id in range(ROLLOUTS)]
    return [[each[name] for each in torch.load(file, weights_only=True)["samples"]] for file in files]


def interrupt_after(rollout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the run once the unit of this rollout counts."""
    commit = Saver.commit

    def interrupted(self: Saver) -> None:
        done = None if self._in_work is None else self._in_work[0].state.rollout_id
        commit(self)
        if done == rollout:
            monkeypatch.setattr(Saver, "commit", commit)
            raise KeyboardInterrupt

    monkeypatch.setattr(Saver, "commit", interrupted)


@pytest.fixture(scope="module")
def one_ahead(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one_ahead")
    assert run(flags(inputs, folder, 1)) == 0
    return folder


def test_one_ahead_every_rollout_but_the_first_is_one_version_behind(one_ahead: Path) -> None:
    rows = metrics_of(one_ahead / "run")
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1, 1, 1]
    assert [row["rollout/staleness_max"] for row in rows] == [0, 1, 1, 1, 1]
    assert all("time/generate_wait" in row and "time/engine_idle" in row for row in rows)
    assert samples(one_ahead, "weight_versions") == [[[str(version)]] * 8 for version in (0, 0, 1, 2, 3)]


def test_the_weights_wait_for_a_rollout_that_takes_longer_than_training(inputs: Path, tmp_path: Path) -> None:
    late = ["--custom-generate-function-path", "tests.end_to_end.runs.begins_late", "--num-rollout", "3"]
    assert run(flags(inputs, tmp_path, 1, *late)) == 0
    assert [row["rollout/staleness"] for row in metrics_of(tmp_path / "run")] == [0, 1, 1]
    assert all(row["time/generate_wait"] > 0.5 for row in metrics_of(tmp_path / "run")[:2])


@pytest.mark.parametrize("stop", [0, 2])
def test_one_ahead_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(
    stop: int, inputs: Path, one_ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(stop, monkeypatch)
    assert run(flags(inputs, tmp_path, 1)) == 130
    assert run(flags(inputs, tmp_path, 1, "--load", str(tmp_path / "state"))) == 0
    assert_same_outcome(one_ahead, tmp_path, ROLLOUTS)
    assert samples(one_ahead, "tokens") == samples(tmp_path, "tokens")


def test_what_was_made_ahead_is_trained_on_also_without_staleness(
    inputs: Path, one_ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(1, monkeypatch)
    assert run(flags(inputs, tmp_path, 1)) == 130
    assert run(flags(inputs, tmp_path, 0, "--load", str(tmp_path / "state"))) == 0
    assert [row.get("rollout/staleness") for row in metrics_of(tmp_path / "run")] == [0, 1, 1, None, None]
    assert samples(tmp_path, "index") == samples(one_ahead, "index")


def test_a_stream_stays_within_its_staleness_and_takes_each_sample_once_also_when_resumed(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(1, monkeypatch)
    words = flags(inputs, tmp_path, 3, "--eval-interval", "2", "--eval-prompt-data", "held", str(inputs / "prompts.jsonl"))
    assert run(words) == 130
    assert run([*words, "--load", str(tmp_path / "state")]) == 0
    rows = metrics_of(tmp_path / "run")[:ROLLOUTS]
    assert all(row["rollout/staleness_max"] <= 3 for row in rows)
    for rollout, versions in enumerate(samples(tmp_path, "weight_versions")):
        assert all(rollout - 3 <= int(version) <= rollout for each in versions for version in each)  # type: ignore[attr-defined]
    indices = [index for rollout in samples(tmp_path, "index") for index in rollout]
    assert len(set(indices)) == len(indices) == 8 * ROLLOUTS
    # The first of the data come within the first rollouts: nothing is left behind for ever.
    assert set(range(8)) <= set(indices)


def test_rollouts_that_train_the_critic_alone_leave_the_weights(inputs: Path, tmp_path: Path) -> None:
    assert run(flags(inputs, tmp_path, 1, "--num-critic-only-steps", "2")) == 0
    assert [row["rollout/staleness"] for row in metrics_of(tmp_path / "run")] == [0, 0, 0, 1, 1]


@pytest.mark.slow
def test_under_ray_the_next_rollout_is_made_while_one_is_trained_on(inputs: Path, one_ahead: Path, tmp_path: Path) -> None:
    slow = ["--custom-rm-path", "tests.end_to_end.runs.takes_its_time"]
    assert run(flags(inputs, tmp_path, 1, "--launcher", "ray", *slow)) == 0
    spans = read_timeline(tmp_path / "run" / "timeline.jsonl")
    training = [span for span in spans if span.phase == "actor_update"]
    made = [span for span in spans if span.phase == "generate"]
    assert len(made) == ROLLOUTS
    together = sum(max(0.0, min(a.ended, b.ended) - max(a.started, b.started)) for a in training for b in made)
    assert together > 0.5 * sum(span.ended - span.started for span in training[:-1])
    local, ray = ([row["train/loss"] for row in metrics_of(folder / "run")] for folder in (one_ahead, tmp_path))
    assert np.allclose(local, ray, atol=1e-6)


def test_a_rollout_function_of_ones_own_is_called_ahead_too(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = RolloutManager.make

    def noting(self: RolloutManager, rollout_id: int) -> object:
        made.append(rollout_id)
        return make(self, rollout_id)

    monkeypatch.setattr(RolloutManager, "make", noting)
    own = ["--rollout-function-path", "slime.rollout.sglang_rollout.generate_rollout"]
    assert run(flags(inputs, tmp_path, 1, *own)) == 0
    assert made == list(range(ROLLOUTS))
