"""What is public says what it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import parsed, source_files

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(file: Path) -> Iterator[Documented]:
    """Functions and classes at a file's top level that do not begin with an underscore."""
    for node in parsed(file).body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node


def test_every_public_function_and_class_has_a_docstring() -> None:
    silent = [
        f"{file}:{node.lineno} {node.name}"
        for file in source_files("fsdp_backend", "slime")
        for node in public_definitions(file)
        if ast.get_docstring(node) is None
    ]
    assert silent == []


def test_every_file_of_the_engine_says_what_it_is_for() -> None:
    files = [file for file in source_files("fsdp_backend", "slime") if file.name != "__init__.py"]
    assert [str(file) for file in files if ast.get_docstring(parsed(file)) is None] == []
