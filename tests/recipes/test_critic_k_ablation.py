"""The ablation: its task, what is run again, and what its table says."""

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest

from recipes.critic_k_ablation import run as ablation
from recipes.critic_k_ablation.results import ARMS, EXPLAINED, REWARD, Arm, draw, finished, interval
from recipes.critic_k_ablation.run import Run, run_all, runs
from recipes.critic_k_ablation.task import LENGTH, reward
from slime.utils.types import Sample


@pytest.mark.parametrize(
    ("response", "stake", "worth"),
    [
        ("h" * LENGTH, "9", 1.0),
        ("h" * LENGTH, "3", 1 / 3),
        ("a" * LENGTH, "9", 0.0),
        ("h" * (LENGTH // 2), "9", 0.5),
        ("xyz", "9", 0.0),
        ("h" * 99, "9", 1.0),
    ],
)
def test_the_reward_is_the_stake_times_the_worth_of_a_whole_answer(response: str, stake: str, worth: float) -> None:
    assert asyncio.run(reward(None, Sample(response=response, label=stake))) == pytest.approx(worth)


def write_run(folder: Path, run: Run, rewards: list[float], explained: list[float]) -> None:
    (folder / run.name / "checkpoints" / "latest").mkdir(parents=True)
    rows = [
        {"rollout": i, REWARD: r, EXPLAINED: None if math.isnan(e) else e}
        for i, (r, e) in enumerate(zip(rewards, explained, strict=True))
    ]
    (folder / run.name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_arm_has_as_many_runs_as_there_are_seeds_each_in_a_folder_of_its_own() -> None:
    everything = list(runs(8))
    assert len({run.name for run in everything}) == len(everything) == 8 * len(ARMS)
    assert {(arm.k, arm.values) for arm in ARMS} == {(k, v) for k in (1, 2, 4) for v in ("before-update", "after-update")}


def test_differences_are_paired_by_seed_and_their_interval_is_students(tmp_path: Path) -> None:
    one, two = Arm(1, "before-update"), Arm(2, "before-update")
    for seed, (base, gain) in enumerate([(0.1, 0.02), (0.9, 0.04), (0.5, 0.06)], start=1):
        write_run(tmp_path, Run(one, seed), [base] * 12, [math.nan, *[0.5] * 11])
        write_run(tmp_path, Run(two, seed), [base + gain] * 12, [math.nan, *[0.7] * 11])
    text = draw(tmp_path)
    # t(0.975, 2) = 4.303, standard error 0.02 / sqrt(3).
    assert "| before | K = 2 | 3 |" in text
    assert "+0.040 [-0.010, +0.090]" in text
    assert "0.700 [0.700, 0.700]" in text
    assert (tmp_path / "result.md").read_text() == text + "\n"
    assert "<svg" in (tmp_path / "result.svg").read_text()
    assert math.isnan(interval(np.array([1.0]))[0])


def test_what_is_finished_is_kept_and_what_is_not_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = list(runs(1))[:2]
    write_run(tmp_path, first, [0.0], [0.0])
    (tmp_path / second.name).mkdir()
    (tmp_path / second.name / "metrics.jsonl").write_text("half")
    started: list[str] = []
    monkeypatch.setattr(ablation, "_python", lambda words, log, core=None: started.append(log.stem))
    missing = [run for run in (first, second) if not finished(tmp_path / run.name)]
    run_all(tmp_path, missing, jobs=2)
    assert started == [second.name]
    assert not (tmp_path / second.name).exists()


def test_a_run_that_fails_ends_the_ablation_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"failed, see .*broken\.log"):
        ablation._python(["-c", "raise ValueError('no')"], tmp_path / "broken.log")
    assert "ValueError: no" in (tmp_path / "broken.log").read_text()
