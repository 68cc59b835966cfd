"""A whole run under Ray, with several processes for every role."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file

from slime.backends.fsdp_utils.group import TrainGroup
from slime.observability.timeline import Span, read_timeline
from tests.end_to_end.runs import make_inputs, metrics_of, ppo_flags, repeatable, run

SIZES = ["--actor-num-gpus-per-node", "2", "--critic-num-gpus-per-node", "3", "--rollout-num-gpus", "2"]


@pytest.mark.slow
def test_what_one_process_began_goes_on_with_two_ranks_and_three_and_two_engines_as_it_would_have(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path)
    begun = ["--num-rollout", "1", "--save", str(tmp_path / "state")]
    runs = {
        "local": [],
        "begun": begun,
        "ray": ["--launcher", "ray", "--load", str(tmp_path / "state"), *SIZES],
    }
    for name, flags in runs.items():
        assert run(ppo_flags(inputs, tmp_path / name, "--adam-eps", "1e-3", *flags)) == 0
    local, spread = metrics_of(tmp_path / "local"), metrics_of(tmp_path / "ray")
    assert [row["rollout"] for row in spread] == [1, 2]
    for one, other in zip(local[1:], spread, strict=True):
        assert one["rollout/reward"] == other["rollout/reward"]
        assert np.isclose(one["train/critic-pass_2/value_loss"], other["train/critic-pass_2/value_loss"], rtol=1e-4)
    for role in ("actor", "critic"):
        files = [tmp_path / name / "checkpoints" / "latest" / role / "model.safetensors" for name in ("local", "ray")]
        want, got = (load_file(file) for file in files)
        assert want.keys() == got.keys()
        for name, tensor in want.items():
            np.testing.assert_allclose(got[name], tensor, atol=1e-5, err_msg=name)


def overlapping(spans: list[Span], phase: str, others: tuple[str, ...]) -> float:
    """Seconds that `phase` ran beside any of the others."""
    mine = [span for span in spans if span.phase == phase]
    return sum(max(0.0, min(a.ended, b.ended) - max(a.started, b.started)) for a in mine for b in spans if b.phase in others)


@pytest.mark.slow
def test_the_critics_passes_run_beside_everything_else_and_change_nothing_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, beside = make_inputs(tmp_path), ("actor_update", "update_weights", "generate")
    flags = ["--launcher", "ray", "--critic-update-steps", "6"]
    assert run(ppo_flags(inputs, tmp_path / "overlapped", *flags)) == 0
    start = TrainGroup.start_update

    def start_and_wait(self: TrainGroup, *args: Any) -> Any:
        pending = start(self, *args)
        pending.result()
        return pending

    monkeypatch.setattr(TrainGroup, "start_update", start_and_wait)
    assert run(ppo_flags(inputs, tmp_path / "waiting", *flags)) == 0
    one, other = (repeatable(metrics_of(tmp_path / name)) for name in ("overlapped", "waiting"))
    assert one == other
    for role in ("actor", "critic"):
        overlapped, waiting = (
            tmp_path / name / "checkpoints" / "latest" / role / "model.safetensors" for name in ("overlapped", "waiting")
        )
        assert overlapped.read_bytes() == waiting.read_bytes()
    together = {name: read_timeline(tmp_path / name / "timeline.jsonl") for name in ("overlapped", "waiting")}
    assert overlapping(together["overlapped"], "critic_update", beside) > 0
    assert overlapping(together["waiting"], "critic_update", ("update_weights", "generate")) == 0
    drivers = [span.phase for span in together["overlapped"] if span.phase != "critic_update"]
    # Of a rollout's work before any update, only the values wait for the passes of the rollout before.
    assert "".join(f"{phase} " for phase in drivers).count("generate log_probs critic_wait values ") == 2
    assert "Timeline of the last rollouts" in (tmp_path / "overlapped" / "report.html").read_text()


def kill_a_rank_after_the_first_rollout(run_dir: Path) -> None:
    while not (run_dir / "metrics.jsonl").exists() or len(metrics_of(run_dir)) < 2:
        time.sleep(0.05)
    ranks = [child for child in psutil.Process().children(recursive=True) if "RankProcess" in "".join(child.cmdline())]
    ranks[0].kill()


@pytest.mark.slow
def test_a_run_whose_process_is_killed_ends_at_once_with_a_checkpoint_to_go_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, state = make_inputs(tmp_path), tmp_path / "state"
    flags = ppo_flags(inputs, tmp_path / "run", "--num-rollout", "500", "--save", str(state), "--save-interval", "1")
    killer = threading.Thread(target=kill_a_rank_after_the_first_rollout, args=(tmp_path / "run",), daemon=True)
    killer.start()
    assert run([*flags, "--launcher", "ray", "--keep-last", "2"]) == 2
    killer.join(timeout=10)
    error = capsys.readouterr().err.splitlines()[-1]
    # Whose death it was is known where nobody waited for an answer of his.
    assert re.match("slime: error: (a process of the run|(actor|critic) rank 0) died: ", error)
    assert f"by --load {state}" in error
    goes_on = ["--launcher", "local", "--load", str(state), "--num-rollout", str(len(metrics_of(tmp_path / "run")) + 1)]
    assert run([*flags, *goes_on]) == 0
