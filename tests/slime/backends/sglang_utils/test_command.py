"""The command line of a server."""

from pathlib import Path

import pytest

from slime.backends.engines import EngineStart
from slime.backends.sglang_utils.command import environment, launch_command
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("command") / "model")


def words(model: Path, *flags: str) -> list[str]:
    start = EngineStart(2, "somewhere/version_7", 7, "127.0.0.1", Path("log"))
    return launch_command(config(model, "p.jsonl", "--rollout-engine", "sglang", "--sglang-python", "py", *flags), start, 1234)


def value(words: list[str], flag: str) -> str:
    """The last counts."""
    return words[len(words) - words[::-1].index(flag)]


def test_it_says_what_to_load_where_to_listen_and_what_sglangs_own_flags_say(model: Path) -> None:
    command = words(model, "--sglang-context-length", "64", "--sglang-enable-metrics", "--sglang-cuda-graph-bs", "1", "2")
    assert command[:3] == ["py", "-m", "sglang.launch_server"]
    expected = {"--model-path": "somewhere/version_7", "--weight-version": "7", "--host": "127.0.0.1", "--port": "1234"}
    expected |= {"--tp-size": "1", "--random-seed": "44", "--dtype": "float32", "--context-length": "64"}
    assert {flag: value(command, flag) for flag in expected} == expected
    assert command[-4:] == ["--enable-metrics", "--cuda-graph-bs", "1", "2"]


def test_the_type_is_the_trainers_unless_sglang_is_told_another(model: Path) -> None:
    assert value(words(model, "--bf16"), "--dtype") == "bfloat16"
    assert value(words(model, "--bf16", "--sglang-dtype", "half"), "--dtype") == "half"


def test_engines_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert environment(3)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment(3)["OMP_NUM_THREADS"] == "5"
