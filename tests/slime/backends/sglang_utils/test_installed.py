"""What is found out about SGLang before anything is started, from a Python that only answers like one that has it."""

import json
import sys
from pathlib import Path

import pytest

from slime.arguments.errors import UserError
from slime.backends.start_engine import require_engine
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model

ANSWERS = {"version": "9.9.9", "flags": ["--context-length", "--mem-fraction-static", "--tp"]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers the questions, and counts them in `asked`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "python"
    file.write_text(
        f'#!/bin/sh\necho "$2" | grep -q ServerArgs && echo flags >> {tmp_path}/asked && '
        f"echo '{json.dumps(ANSWERS['flags'])}' && exit\necho {ANSWERS['version']}\n"
    )
    file.chmod(0o755)
    return file


def refusal(model: Path, *flags: str) -> str:
    with pytest.raises(UserError) as caught:
        require_engine(config(model, "p.jsonl", "--rollout-engine", "sglang", *flags))
    return str(caught.value)


def test_where_there_is_no_sglang_the_command_that_installs_it_is_said(model: Path) -> None:
    message = refusal(model)
    assert message.startswith(
        f"--rollout-engine sglang: there is no SGLang in the environment of {sys.executable}: pip install "
    )
    assert "--sglang-python nowhere" in refusal(model, "--sglang-python", "nowhere")


def test_nothing_is_asked_of_sglang_where_none_is_started(model: Path) -> None:
    for flags in (["--rollout-engine", "embedded"], ["--rollout-engine", "sglang", "--rollout-external-engine-addrs", "a:1"]):
        require_engine(config(model, "p.jsonl", *flags))


def test_a_flag_that_sglang_does_not_know_is_refused_with_the_nearest_name(model: Path, python: Path) -> None:
    assert refusal(model, "--sglang-python", str(python), "--sglang-mem-fraction", "0.5") == (
        "unknown flag --sglang-mem-fraction: SGLang 9.9.9 has no --mem-fraction; did you mean --sglang-mem-fraction-static?"
    )


def test_flags_that_it_knows_pass_and_it_is_asked_for_them_once_a_version(model: Path, python: Path, tmp_path: Path) -> None:
    flags = ["--rollout-engine", "sglang", "--sglang-python", str(python), "--sglang-context-length", "64"]
    for _ in range(3):
        require_engine(config(model, "p.jsonl", *flags))
    assert (tmp_path / "asked").read_text().split() == ["flags"]
