"""The metrics file and the TensorBoard events."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from slime.observability.writers import JsonlWriter, TensorBoardWriter, WandbWriter, read_metrics
from tests.stand_ins import install_wandb


def write_lines(path: Path, *rollouts: int) -> None:
    writer = JsonlWriter(path)
    for rollout in rollouts:
        writer.write(rollout, {"rollout/reward": rollout / 10})
    writer.close()


def test_metrics_come_back_as_they_were_written_and_nan_stays_nan(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write(0, {"rollout/reward": 0.25, "train/ppo_kl": math.nan, "train/grad_norm": math.inf})
    writer.write(1, {"rollout/reward": 0.5})
    writer.close()
    first, second = read_metrics(path)
    assert (first["rollout"], first["rollout/reward"]) == (0, 0.25)
    assert math.isnan(first["train/ppo_kl"])
    assert math.isnan(first["train/grad_norm"])
    assert second == {"rollout": 1, "rollout/reward": 0.5}


def test_a_line_is_json_that_any_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlWriter(path).write(3, {"train/ppo_kl": math.nan})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(path.read_text(), parse_constant=refuse) == {"rollout": 3, "train/ppo_kl": None}


def test_a_line_can_be_read_before_the_file_is_closed(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write(0, {"rollout/reward": 1.0})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    writer.close()
    writer.close()


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 0, 1)
    write_lines(path, 2)
    assert [row["rollout"] for row in read_metrics(path)] == [0, 1, 2]


def test_a_half_written_last_line_is_dropped_when_the_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 0)
    with path.open("a") as file:
        file.write('{"rollout": 1, "rollout/rew')
    write_lines(path, 1)
    assert [row["rollout"] for row in read_metrics(path)] == [0, 1]


def test_an_undeclared_metric_is_rejected_and_nothing_is_written(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="train/rewrad"):
        writer.write(0, {"rollout/reward": 1.0, "train/rewrad": 1.0})
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    "broken",
    ["{", "[1, 2]", '{"rollout/reward": 1.0}', '{"rollout": "1"}', '{"rollout": 1, "train/lr": "x"}', '{"rollout": true}'],
)
def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 0)
    with path.open("a") as file:
        file.write(broken + "\n")
    with pytest.raises(ValueError, match="line 2") as caught:
        read_metrics(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_a_broken_line_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"rollout": 0}\n\xff\xfe\x00\n')
    with pytest.raises(ValueError, match="line 2: not valid JSON"):
        read_metrics(path)


def test_the_tensorboard_events_hold_the_scalars_at_their_rollouts(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.write(0, {"rollout/reward": 0.25, "train/critic-pass_2/value_loss": 0.5})
    writer.write(7, {"rollout/reward": 0.75})
    events = EventAccumulator(str(tmp_path)).Reload()
    writer.close()
    assert [(event.step, event.value) for event in events.Scalars("rollout/reward")] == [(0, 0.25), (7, 0.75)]
    assert [event.value for event in events.Scalars("train/critic-pass_2/value_loss")] == [0.5]


def test_an_undeclared_metric_does_not_reach_tensorboard(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    with pytest.raises(ValueError, match="nonsense"):
        writer.write(0, {"rollout/reward": 0.25, "nonsense": 1.0})
    writer.close()
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == []


def test_importing_the_package_loads_neither_torch_nor_ray_nor_matplotlib() -> None:
    modules = "names, timers, writers, progress, panels, page, key_numbers, formatting"
    code = f"import sys; from slime.observability import {modules}; print({{'torch', 'ray', 'matplotlib'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_wandb_gets_each_rollout_as_a_step_and_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = install_wandb(monkeypatch)
    writer = WandbWriter({"lr": 1e-6}, project="p", mode="offline")
    writer.write(3, {"rollout/reward": np.float32(0.5), "train/ppo_kl": 0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="train/rewrad"):
        writer.write(4, {"train/rewrad": 1.0})
    writer.close()
    assert wandb.runs == [{"config": {"lr": 1e-6}, "project": "p", "mode": "offline"}]
    assert wandb.logged == [(3, {"rollout/reward": 0.5, "train/ppo_kl": 0.0})]
    assert [type(value) for value in wandb.logged[0][1].values()] == [float, float]
    assert wandb.finished == 1


def test_what_wandb_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    install_wandb(monkeypatch)
    with pytest.raises(ValueError, match=r"^Weights & Biases: no such entity: nobody$"):
        WandbWriter({}, group="refused")
