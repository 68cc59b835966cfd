"""Whole runs with the real SGLang, as `make test-sglang` installs it."""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.backends.sglang_utils.command import free_port
from slime.rollout.replay import load_samples
from slime.utils.types import Sample
from tests.end_to_end.runs import likes_one_letter, make_inputs, metrics_of, ppo_flags, run

PYTHON = Path(__file__).parents[2] / ".venv-sglang" / "bin" / "python"
SGLANG = ["--rollout-engine", "sglang", "--sglang-python", str(PYTHON), "--sglang-max-total-tokens", "4096"]
HERE = "tests.end_to_end.test_sglang_run"
PARITY = 1e-4
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-sglang: make test-sglang installs it"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("sglang"))


def servers() -> list[psutil.Process]:
    """The SGLang servers that this process has, down the generations."""
    return [p for p in psutil.Process().children(recursive=True) if p.cmdline()[1:3] == ["-m", "sglang.launch_server"]]


def disagreement(run_dir: Path) -> list[float]:
    """Rollout by rollout, how far the engines' log-probs are from the trainer's."""
    return [row["train/train_rollout_logprob_abs_diff"] for row in metrics_of(run_dir)]


@pytest.mark.parametrize("transport", ["nccl", "tensor", "disk"])
def test_engine_and_trainer_agree_after_every_transport(inputs: Path, tmp_path: Path, transport: str) -> None:
    samples = str(tmp_path / "{rollout_id}.pt")
    flags = [*SGLANG, "--update-weight-transport", transport, "--update-weight-buffer-size", "20000"]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags, "--num-rollout", "2", "--save-debug-rollout-data", samples)) == 0
    assert all(each < PARITY for each in disagreement(tmp_path / "run"))
    for rollout in range(2):
        assert {version for s in load_samples(samples, rollout) for version in s.weight_versions} == {str(rollout)}
    assert servers() == []


_killed: list[int] = []


async def kills_an_engine_at_its_first_sample(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Of the second rollout: while the other samples are under way."""
    if not _killed and sample.weight_versions == ["1"]:
        victim = next(p for p in servers() if len(p.children()) > 1)
        _killed.append(victim.pid)
        next(child for child in victim.children() if "sched" in child.name()).kill()
        await asyncio.sleep(0)
    return await likes_one_letter(args, sample)


def test_an_engine_killed_amid_a_rollout_or_before_an_update_is_replaced_and_every_sample_is_there_once(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _killed.clear()
    send = WeightSync._send

    def kill_one_and_send(self: WeightSync, urls: list[str]) -> dict[str, str]:
        if self.version == 3 and len(_killed) == 1:
            _killed.append(servers()[0].pid)
            servers()[0].kill()
        return send(self, urls)

    monkeypatch.setattr(WeightSync, "_send", kill_one_and_send)
    samples = str(tmp_path / "{rollout_id}.pt")
    flags = [*SGLANG, "--launcher", "ray", "--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2", "--num-rollout", "4"]
    flags += ["--rollout-max-response-len", "40", "--rollout-batch-size", "8", "--save-debug-rollout-data", samples]
    flags += ["--custom-rm-path", f"{HERE}.kills_an_engine_at_its_first_sample"]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    assert len(set(_killed)) == 2
    assert "; replaced by one with weight version 1" in capfd.readouterr().out
    for rollout in range(4):
        counted = Counter(sample.index for sample in load_samples(samples, rollout))
        assert (len(counted), set(counted.values())) == (16, {1})
        assert {version for s in load_samples(samples, rollout) for version in s.weight_versions} == {str(rollout)}
    assert all(each < PARITY for each in disagreement(tmp_path / "run"))
    assert servers() == []


def test_engines_that_run_already_are_used_and_left_running(inputs: Path, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    command = [str(PYTHON), "-m", "sglang.launch_server", "--model-path", str(inputs / "model"), "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--max-total-tokens", "4096", "--sleep-on-idle"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"})
    try:
        while "ready to roll" not in (tmp_path / "log").read_text():
            assert server.poll() is None, (tmp_path / "log").read_text()
        flags = ["--rollout-engine", "sglang", "--rollout-external-engine-addrs", f"127.0.0.1:{port}", "--num-rollout", "2"]
        assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
        assert all(each < PARITY for each in disagreement(tmp_path / "run"))
        assert server.poll() is None
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("transport", ["nccl", "disk"])
def test_weights_change_under_responses_and_no_token_is_older_than_allowed(
    inputs: Path, tmp_path: Path, transport: str
) -> None:
    samples = str(tmp_path / "{rollout_id}.pt")
    flags = [*SGLANG, "--update-weight-transport", transport, "--max-staleness", "2", "--num-rollout", "4"]
    flags += ["--rollout-max-response-len", "100", "--save-debug-rollout-data", samples]
    assert run(ppo_flags(inputs, tmp_path / "run", *flags)) == 0
    assert all(row["rollout/staleness_max"] <= 2 for row in metrics_of(tmp_path / "run"))
    taken = [sample for rollout in range(4) for sample in load_samples(samples, rollout)]
    assert len({sample.index for sample in taken}) == len(taken) == 32
    assert max(int(version) for sample in taken for version in sample.weight_versions) > 0
    assert servers() == []


def test_a_server_that_does_not_start_is_one_line(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ppo_flags(inputs, tmp_path / "run", *SGLANG, "--sglang-load-format", "nonsense")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("slime: error: the SGLang server did not start: exit status 2, ")
    assert "--load-format" in error


def test_a_flag_that_sglang_does_not_have_is_named_before_anything_starts(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ppo_flags(inputs, tmp_path / "run", *SGLANG, "--sglang-mem-fraction", "0.5")) == 2
    assert "did you mean --sglang-mem-fraction-static?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
