"""YAML files as words of a command line."""

from pathlib import Path
from typing import Any

import yaml

from slime.arguments.errors import UserError


def load(flag: str, file: Path) -> Any:
    """The file's content. Raises UserError, which names the flag and the file, if it can't be read."""
    try:
        return yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{flag} {file}: {' '.join(str(error).split())}") from error


def as_words(flag: str, value: Any) -> list[str]:
    """A flag with its value, as typed; nothing for null."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
