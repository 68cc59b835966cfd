"""Handing a command line over to upstream slime."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slime.cli import main
from slime.upstream import wants_megatron
from tests.slime.arguments.command_lines import required

MEGATRON = ["--train-backend", "megatron"]
TRAIN_PY = """import json, os, sys
import slime
print(json.dumps({"words": sys.argv[1:], "slime": slime.WHOSE, "folder": os.getcwd(), "path": os.environ["PYTHONPATH"]}))
sys.exit(7)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What looks like a checkout of slime: its train.py prints what it was started with, and exits with 7."""
    folder = tmp_path / "their slime"
    (folder / "slime").mkdir(parents=True)
    (folder / "slime" / "__init__.py").write_text("WHOSE = 'theirs'")
    (folder / "train.py").write_text(TRAIN_PY)
    return folder


def slime(folder: Path, upstream: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """`slime WORDS`, run in a folder of its own below `folder`."""
    (folder / "elsewhere").mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "SLIME_UPSTREAM"}
    if upstream is not None:
        environment["SLIME_UPSTREAM"] = upstream
    command = [sys.executable, "-m", "slime.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder / "elsewhere", env=environment)


@pytest.mark.parametrize("relative", [False, True])
def test_the_words_reach_train_py_of_the_checkout_as_they_are_and_its_exit_status_is_ours(
    checkout: Path, tmp_path: Path, relative: bool
) -> None:
    words = ["--tensor-model-parallel-size", "2", *MEGATRON, "--prompt-data", "a b.jsonl", "", "--critic-update-steps=1"]
    words += ["--no-such-flag=é", "--custom", "--", "-x"]
    done = slime(tmp_path, f"../{checkout.name}" if relative else str(checkout), "train", *words)
    announced, told = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (7, "")
    assert announced == f"handing over to {checkout / 'train.py'}"
    seen = json.loads(told)
    assert (seen["words"], seen["slime"], seen["folder"]) == (words, "theirs", str(tmp_path / "elsewhere"))


def test_the_checkout_comes_before_what_pythonpath_holds(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.pathsep.join(filter(None, ["/mine", os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", before)
    seen = json.loads(slime(tmp_path, str(checkout), "train", *MEGATRON).stdout.splitlines()[-1])
    assert seen["path"] == os.pathsep.join([str(checkout), before])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--train-backend", "megatron"], True),
        (["--train-backend=megatron"], True),
        (["--train_backend", "megatron"], True),
        (["--train-backend", "fsdp", "--train-backend", "megatron"], True),
        (["--train-backend=megatron", "--train-backend=fsdp"], False),
        (["--train-backend"], False),
        (["--run-dir", "megatron"], False),
        ([], False),
    ],
)
def test_the_last_backend_named_counts_in_each_spelling(words: list[str], wanted: bool) -> None:
    assert wants_megatron(words) == wanted


REFUSED = [
    (None, [], "--train-backend megatron runs slime itself: set SLIME_UPSTREAM to a checkout"),
    ("", [], "--train-backend megatron runs slime itself: set SLIME_UPSTREAM to a checkout"),
    ("nowhere", [], "SLIME_UPSTREAM=nowhere holds no train.py"),
    ("CHECKOUT", ["--critic-update-steps", "2"], "--critic-update-steps 2 needs --train-backend fsdp"),
    ("CHECKOUT", ["--critic-update-steps=3"], "--critic-update-steps 3 needs --train-backend fsdp"),
]


@pytest.mark.parametrize(("upstream", "words", "message"), REFUSED)
def test_what_cannot_be_handed_over_is_one_line(
    checkout: Path, tmp_path: Path, upstream: str | None, words: list[str], message: str
) -> None:
    done = slime(tmp_path, str(checkout) if upstream == "CHECKOUT" else upstream, "train", *MEGATRON, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"slime: error: {message}")


@pytest.mark.parametrize("command", ["estimate", "train"])
def test_megatron_is_refused_where_there_is_no_command_line_to_hand_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIME_UPSTREAM", str(tmp_path))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"train_backend": "megatron"}))
    words = MEGATRON if command == "estimate" else ["--config", str(tmp_path / "run.yaml")]
    assert main([command, *required(tmp_path), *words]) == 2
    message = "--train-backend megatron is for the command line of slime train only, which is handed on as it is"
    assert capsys.readouterr().err == f"slime: error: {message}\n"
