"""The project's source files, parsed."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("fsdp_backend", "slime", "recipes")


def source_files(*packages: str) -> list[Path]:
    """Python files of these packages (default: all of the project but its tests), relative to the repository."""
    return sorted(file.relative_to(ROOT) for package in packages or PACKAGES for file in (ROOT / package).rglob("*.py"))


@cache
def text(file: Path) -> str:
    return (ROOT / file).read_text()


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(text(file), filename=str(file))


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, inner ones too."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a file, with the dotted name it calls."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node
