"""A file is one idea and a function fits a screen."""

import pytest

from tests.architecture.source import ROOT, functions, source_files, text

LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60


def test_there_are_files_to_look_at() -> None:
    names = {str(file) for file in source_files()}
    assert {"fsdp_backend/training/learner.py", "slime/loop.py"} <= names
    assert len(names) > 50


def test_no_file_is_longer_than_one_idea() -> None:
    assert [str(file) for file in source_files() if text(file).count("\n") > LINES_OF_A_FILE] == []


def test_no_function_is_longer_than_a_screen() -> None:
    too_long = [
        f"{file}:{function.lineno} {function.name}"
        for file in source_files()
        for function in functions(file)
        if (function.end_lineno or 0) - function.lineno + 1 > LINES_OF_A_FUNCTION
    ]
    assert too_long == []


@pytest.mark.parametrize("package", ["fsdp_backend", "slime", "recipes", "tests"])
def test_init_files_are_empty(package: str) -> None:
    # Golden numbers bring their loader along; from slime.rollout.rm_hub itself slime's plug-ins import its two functions.
    allowed = {"tests/golden/__init__.py", "slime/rollout/rm_hub/__init__.py"}
    filled = {file.as_posix() for file in source_files(package) if file.name == "__init__.py" and (ROOT / file).stat().st_size}
    assert filled <= allowed
