"""The flags themselves: their names, their help, and what asking for help costs."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.arguments.parse import CommandLine, known_flags
from slime.arguments.roles import CriticOverrides, field_docstrings

FLAGS_FILE = Path(__file__).parent / "flags.txt"
GROUPS: list[Any] = [field.type for field in dataclasses.fields(CommandLine) if field.type is not CriticOverrides]
HEAVY = ("torch", "ray", "transformers", "datasets", "aiohttp", "matplotlib")


def test_the_flags_are_those_that_people_may_rely_on() -> None:
    assert [f"--{name.replace('_', '-')}" for name in known_flags()] == FLAGS_FILE.read_text().split()


def test_no_two_groups_have_a_flag_of_the_same_name() -> None:
    counts = [len(dataclasses.fields(field.type)) for field in dataclasses.fields(CommandLine)]  # type: ignore[arg-type]
    assert len(known_flags()) == sum(counts)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_every_flag_has_help_of_its_own(group: Any) -> None:
    docs = field_docstrings(group)
    assert set(docs) == {field.name for field in dataclasses.fields(group)}
    assert all(doc.endswith(".") for doc in docs.values())
    assert len(set(docs.values())) == len(docs)


def test_every_critic_flag_says_whose_value_it_takes_when_it_is_not_set() -> None:
    kinds: list[Any] = [field.type for field in dataclasses.fields(CriticOverrides)]
    helps = [kind.__metadata__[0].help for kind in kinds]
    assert all(text.startswith("The critic's --") and text.endswith("None: the actor's value.") for text in helps)


def run_and_name_heavy_modules(*words: str) -> tuple[int, str, str]:
    code = (
        "import sys\nfrom slime.cli import main\n"
        f"try:\n    status = main({list(words)!r})\nexcept SystemExit as exit_:\n    status = exit_.code\n"
        f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    return done.returncode, done.stdout, done.stderr


def test_help_shows_every_flag_and_imports_nothing_heavy() -> None:
    status, output, _ = run_and_name_heavy_modules("train", "--help")
    assert status == 0
    assert [name for name in FLAGS_FILE.read_text().split() if f"{name} " not in output and f"{name}," not in output] == []


def test_a_flag_error_is_one_line_and_imports_nothing_heavy() -> None:
    status, _, errors = run_and_name_heavy_modules("train", "--critic-update-stepz", "2")
    assert (status, errors) == (
        2,
        "slime: error: unknown flag --critic-update-stepz; did you mean --critic-update-steps?\n",
    )
