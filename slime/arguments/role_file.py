"""--megatron-config-path: slime's YAML of settings for one role, as the flags that say the same here."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime.arguments.errors import UserError
from slime.arguments.scripts.read import Script, ScriptFlags, is_known, take
from slime.arguments.yaml_words import as_words, load

ROLES = ("actor", "critic")
_ONE_UNIT = "both roles are saved to, and loaded from, one folder"


@dataclass
class RoleFile:
    """What the file comes to."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    """Tokens of each flag of ours, by field name (`lr`, `critic_lr`)."""
    scripts: dict[str, Script] = field(default_factory=lambda: {role: Script(role) for role in ROLES})
    """Flags of each role that are none of ours."""
    notes: ScriptFlags = field(default_factory=ScriptFlags)


def read_role_file(file: Path, known: Collection[str]) -> RoleFile:
    """Raises UserError, which names the file, for anything that is not
    `megatron: [{name, role: actor|critic, overrides: {field: value}}]` with settings that a role has here. `known` holds the
    field names of our flags."""
    content = load("--megatron-config-path", file)
    try:
        return _read(content, known)
    except ValueError as error:
        raise UserError(f"--megatron-config-path {file}: {error}") from error


def _read(content: Any, known: Collection[str]) -> RoleFile:
    if not isinstance(content, dict) or list(content) != ["megatron"] or not isinstance(content["megatron"], list):
        raise ValueError("expected megatron: with a list of {name, role, overrides}")
    found, seen = RoleFile(), set()
    for entry in content["megatron"]:
        if not isinstance(entry, dict) or not {"role"} <= set(entry) <= {"name", "role", "overrides"}:
            raise ValueError(f"expected {{name, role, overrides}}, got {entry}")
        role, overrides = entry["role"], entry.get("overrides") or {}
        if role not in ROLES:
            raise ValueError(f"unknown role {role}: there are actor and critic")
        if role in seen:
            raise ValueError(f"role {role} stands there twice")
        if not isinstance(overrides, dict):
            raise ValueError(f"overrides of {role} must be a mapping of fields to values, got {overrides}")
        seen.add(role)
        _read_role(role, {str(name).replace("-", "_"): value for name, value in overrides.items()}, known, found)
    return found


def _read_role(role: str, overrides: dict[str, Any], known: Collection[str], found: RoleFile) -> None:
    prefix = "" if role == "actor" else "critic_"
    script_words: list[str] = []
    if role == "critic" and "save" in overrides:
        # A critic that resumes from where it saves does so with the actor; from elsewhere, it only starts there.
        aside = ["save", "load"] if overrides.get("load") == overrides["save"] else ["save"]
        shown = tuple((f"{name}: {overrides.pop(name)} (critic)", _ONE_UNIT) for name in aside)
        found.notes += ScriptFlags(set_aside=shown)
    for name, value in overrides.items():
        ours = prefix + name
        if ours in known and not name.startswith("critic_"):
            found.flags[ours] = as_words(f"--{ours.replace('_', '-')}", value)
        elif is_known(flag := f"--{name.replace('_', '-')}"):
            script_words += [] if value is False else as_words(flag, value)
        else:
            of_role = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
            nearest = difflib.get_close_matches(name, of_role, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"{name} is no setting of {role}{hint}")
    found.scripts[role] = take(script_words, role)[1]
