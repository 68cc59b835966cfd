"""Thirty processes killed at random moments, saves included: what comes out is what an undisturbed run makes."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.runs import assert_same_outcome, make_inputs, metrics_of, ppo_flags, run
from tests.worlds import CONTEXT

DRIVERS_KILLED, OTHERS_KILLED = 22, 8
ROLLOUTS = 24


def flags(inputs: Path, folder: Path, *extra: str) -> list[str]:
    words = ["--num-rollout", str(ROLLOUTS), "--save", str(folder / "state"), "--save-interval", "1", "--keep-last", "2"]
    return ppo_flags(inputs, folder / "run", *words, "--lr-decay-style", "linear", "--kl-coef", "0.05", *extra)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(flags(inputs, folder)) == 0
    return folder


def run_silently(words: list[str]) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    os._exit(run(words))


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--async-save",)])
def test_a_driver_killed_again_and_again(extra: tuple[str, ...], inputs: Path, undisturbed: Path, tmp_path: Path) -> None:
    words = flags(inputs, tmp_path, "--load", str(tmp_path / "state"), *extra)
    moments, killed = random.Random(len(extra)), 0
    while killed < DRIVERS_KILLED // 2:
        process = CONTEXT.Process(target=run_silently, args=(words,))
        process.start()
        process.join(timeout=moments.uniform(0.5, 4.0))
        if process.exitcode == 0:
            break
        assert process.exitcode is None, "the run ended by itself"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += 1
    assert killed > 2
    assert run(words) == 0
    assert_same_outcome(undisturbed, tmp_path, ROLLOUTS)


class Killer(threading.Thread):
    """Kills one of actor, critic and engine at a time, and the next once the run has got on."""

    def __init__(self, run_dir: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.run_dir, self.moments = run_dir, random.Random(seed)
        self.killed: list[str] = []

    def run(self) -> None:
        while len(self.killed) < OTHERS_KILLED:
            self.wait_for_progress()
            time.sleep(self.moments.uniform(0.0, 0.7))
            children = psutil.Process().children(recursive=True)
            kind = self.moments.choice(["RankProcess", "EngineProcess"])
            victims = [child for child in children if kind in "".join(child.cmdline())]
            if victims:
                self.moments.choice(victims).kill()
                self.killed.append(kind)

    def wait_for_progress(self) -> None:
        before = self.rollouts()
        while self.rollouts() <= before:
            time.sleep(0.02)

    def rollouts(self) -> int:
        return len(metrics_of(self.run_dir)) if (self.run_dir / "metrics.jsonl").exists() else 0


@pytest.mark.slow
def test_ranks_and_engines_killed_again_and_again(inputs: Path, undisturbed: Path, tmp_path: Path) -> None:
    killer = Killer(tmp_path / "run", 1)
    killer.start()
    assert run(flags(inputs, tmp_path, "--launcher", "ray", "--restarts", str(OTHERS_KILLED))) == 0
    assert len(killer.killed) == OTHERS_KILLED
    assert set(killer.killed) == {"RankProcess", "EngineProcess"}
    assert_same_outcome(undisturbed, tmp_path, ROLLOUTS)
