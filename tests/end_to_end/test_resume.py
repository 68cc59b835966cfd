"""A run that was stopped goes on as if it had not been."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime.rollout.manager import RolloutManager
from slime.saver import Saver
from tests.end_to_end.runs import assert_same_outcome, make_inputs, metrics_of, ppo_flags, run

ROLLOUTS = 5


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def flags(inputs: Path, folder: Path, *extra: str) -> list[str]:
    """Everything that has a state of its own: a clock with decay, rollouts for the critic alone, a KL penalty, shuffled data
    that lasts for two rollouts, evaluations."""
    words = ["--num-rollout", str(ROLLOUTS), "--save", str(folder / "state"), "--save-interval", "1", "--kl-coef", "0.05"]
    words += ["--lr-decay-style", "linear", "--num-critic-only-steps", "1", "--normalize-advantages", "--keep-last", "2"]
    words += ["--eval-interval", "2", "--eval-prompt-data", "held", str(inputs / "prompts.jsonl")]
    return ppo_flags(inputs, folder / "run", *words, *extra)


@pytest.fixture(scope="module")
def uninterrupted(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run(flags(inputs, folder)) == 0
    return folder


def interrupt_at(rollout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = RolloutManager.make

    def interrupted(self: RolloutManager, rollout_id: int) -> Any:
        if rollout_id == rollout:
            monkeypatch.setattr(RolloutManager, "make", make)
            raise KeyboardInterrupt
        return make(self, rollout_id)

    monkeypatch.setattr(RolloutManager, "make", interrupted)


@pytest.mark.parametrize("stop", [1, 3])
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(
    stop: int,
    inputs: Path,
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupt_at(stop, monkeypatch)
    assert run(flags(inputs, tmp_path)) == 130
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "state"))) == 0
    assert f"going on from {tmp_path}/state/rollout_{stop - 1:06d}: {stop} of 5 rollouts are done" in capsys.readouterr().out
    assert_same_outcome(uninterrupted, tmp_path, ROLLOUTS)


def started(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "slime.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_killed_while_it_saves_it_goes_on_from_the_last_whole_unit(inputs: Path, uninterrupted: Path, tmp_path: Path) -> None:
    process = started(flags(inputs, tmp_path))
    # The critic is written after the actor: at this moment the third unit is half there.
    while not (tmp_path / "state" / "rollout_000002" / "actor").exists() and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "state"))) == 0
    assert_same_outcome(uninterrupted, tmp_path, ROLLOUTS)


def test_asked_to_stop_it_finishes_the_rollout_saves_and_says_how_to_go_on(
    inputs: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "slime.cli", *flags(inputs, tmp_path, "--save-interval", "100")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("rollout 1/"):
        pass
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "SIGTERM: stopping after this rollout" in out
    done = len(metrics_of(tmp_path / "run"))
    saved = f"{done} of {ROLLOUTS} rollouts are saved: go on by --load {tmp_path / 'state'}"
    assert error.splitlines()[-1] == f"slime: interrupted after rollout {done}; {saved}"
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "state"))) == 0
    assert_same_outcome(uninterrupted, tmp_path, ROLLOUTS)


@pytest.mark.parametrize("stop", [2, 4])
def test_saved_in_the_background_to_two_places_it_goes_on_the_same(
    stop: int, inputs: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = flags(inputs, tmp_path, "--async-save", "--critic-save", str(tmp_path / "critics"))
    interrupt_at(stop, monkeypatch)
    assert run(words) == 130
    assert not (tmp_path / "state" / "rollout_000000" / "critic").exists()
    assert run([*words, "--load", str(tmp_path / "state")]) == 0
    for unit in ("rollout_000003", "rollout_000004"):
        shutil.move(tmp_path / "critics" / unit / "critic", tmp_path / "state" / unit / "critic")
    assert_same_outcome(uninterrupted, tmp_path, ROLLOUTS)
    assert sorted(path.name for path in (tmp_path / "critics").iterdir()) == ["rollout_000003", "rollout_000004"]


def test_the_critics_half_may_have_been_moved(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ppo_flags(inputs, tmp_path / "run", "--save", str(tmp_path / "state"), "--critic-save", str(tmp_path / "critics"))
    assert run([*words, "--num-rollout", "1"]) == 0
    shutil.move(tmp_path / "critics", tmp_path / "moved")
    more = [*words, "--num-rollout", "2", "--load", str(tmp_path / "state")]
    assert run(more) == 2
    assert f"checkpoint {tmp_path}/critics/rollout_000000/critic has no role.json" in capsys.readouterr().err
    assert run([*more, "--critic-load", str(tmp_path / "moved")]) == 0


def test_a_disk_that_is_full_ends_the_run_in_one_line_and_leaves_the_last_unit_to_go_on_from(
    inputs: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = Saver.begin
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin_on_a_full_disk(self: Saver, rollout_id: int, metrics: dict[str, float]) -> None:
        if rollout_id == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            begin(self, rollout_id, metrics)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(Saver, "begin", begin_on_a_full_disk)
    assert run(flags(inputs, tmp_path)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"slime: error: checkpoint {tmp_path}/state/rollout_000002/actor can't be written: ")
    monkeypatch.setattr(Saver, "begin", begin)
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "state"))) == 0
    assert_same_outcome(uninterrupted, tmp_path, ROLLOUTS)


def test_without_optimizer_state_it_goes_on_only_when_told_so(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ppo_flags(inputs, tmp_path / "run", "--save", str(tmp_path / "state"), "--no-save-optim")
    assert run([*words, "--num-rollout", "1"]) == 0
    more = [*words, "--num-rollout", "2", "--load", str(tmp_path / "state")]
    assert run(more) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("was saved without optimizer state: only --no-load-optim goes on from it")
    assert run([*more, "--no-load-optim"]) == 0
    assert metrics_of(tmp_path / "run")[1]["rollout"] == 1


def test_only_the_last_units_are_kept_each_with_its_marker(uninterrupted: Path) -> None:
    assert sorted(path.name for path in (uninterrupted / "state").iterdir()) == ["rollout_000003", "rollout_000004"]
    for unit in (uninterrupted / "state").iterdir():
        assert sorted(path.name for path in unit.iterdir()) == ["actor", "committed.json", "critic"]


def test_a_checkpoint_is_exported_offline_as_the_run_exported_it(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (uninterrupted / "state", uninterrupted / "state" / "rollout_000003"):
        out = tmp_path / folder.name
        assert run(["export", str(folder), str(out)]) == 0
        assert capsys.readouterr().out.split() == [str(out / "actor"), str(out / "critic")]
    for role in ("actor", "critic"):
        online = uninterrupted / "run" / "checkpoints" / "latest" / role
        files = {file.name: file.read_bytes() for file in (tmp_path / "state" / role).iterdir()}
        assert files == {file.name: file.read_bytes() for file in online.iterdir()}


def test_export_says_what_is_wrong(uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    state = str(uninterrupted / "state")
    for words, message in (
        ([state], "usage: slime export CHECKPOINT OUT"),
        ([str(tmp_path), str(tmp_path / "out")], "is no committed checkpoint and holds none"),
        ([state, str(tmp_path / "full")], "exists already: give a new folder"),
    ):
        assert run(["export", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_run_that_is_done_says_so(
    inputs: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*flags(inputs, tmp_path), "--save", "None", "--load", str(uninterrupted / "state")]) == 0
    assert "nothing left to do: 5 rollouts are done, --num-rollout is 5" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_folder_for_saving_that_is_empty_yet_starts_from_the_beginning(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "state"), "--num-rollout", "1")) == 0
    assert f"no checkpoint in {tmp_path}/state yet: from the beginning" in capsys.readouterr().out


def _no_marker(unit: Path) -> None:
    (unit / "committed.json").unlink()


def _torn_marker(unit: Path) -> None:
    (unit / "committed.json").write_text("{")


def _no_critic(unit: Path) -> None:
    shutil.rmtree(unit / "critic")


def _critic_of_another(unit: Path) -> None:
    shutil.rmtree(unit / "critic")
    shutil.copytree(unit / "actor", unit / "critic")


def _critic_of_the_rollout_before(unit: Path) -> None:
    summary = unit / "critic" / "role.json"
    content = json.loads(summary.read_text())
    content["progress"]["rollout_id"] -= 1
    summary.write_text(json.dumps(content))


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no marker": (_no_marker, "holds no committed checkpoint"),
    "torn marker": (_torn_marker, "committed.json can't be read"),
    "missing half": (_no_critic, "critic has no role.json"),
    "halves of two rollouts": (_critic_of_the_rollout_before, "critic is of rollout 2, not of 3 as its unit"),
    "wrong half": (_critic_of_another, "is of another model"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_torn_is_one_line_and_never_a_fresh_start(
    case: str, inputs: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it, message = BROKEN[case]
    shutil.copytree(uninterrupted / "state" / "rollout_000003", tmp_path / "broken" / "rollout_000003")
    break_it(tmp_path / "broken" / "rollout_000003")
    assert run(flags(inputs, tmp_path, "--load", str(tmp_path / "broken"))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("slime: error: ")
    assert message in error
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_units_of_two_runs_never_mix(
    inputs: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*flags(inputs, tmp_path), "--save", str(uninterrupted / "state")]) == 2
    assert "holds checkpoints already: go on from them by --load" in capsys.readouterr().err
