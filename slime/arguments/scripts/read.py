"""Takes the flags of slime's launch scripts that are none of ours out of a command line, and says what each comes to."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime.arguments.errors import UserError
from slime.arguments.scripts.shape import CHECKS, SWITCHES
from slime.arguments.scripts.table import FLAGS, Refused, SetAside, Share, Translated

NO_COUNTERPART = "the checkpoint's config.json says nothing of the kind"
KNOWN = frozenset(FLAGS) | frozenset(CHECKS)
"""Every flag that is read here, without its dashes."""


@dataclass(frozen=True)
class ScriptFlags:
    """What became of a role's script flags."""

    translated: tuple[tuple[str, str], ...] = ()
    """(as it was given, as it is said here)"""
    set_aside: tuple[tuple[str, str], ...] = ()
    """(as it was given, why)"""
    checked: tuple[str, ...] = ()
    """Shape flags that agree with the checkpoint."""

    def __add__(self, other: "ScriptFlags") -> "ScriptFlags":
        return ScriptFlags(self.translated + other.translated, self.set_aside + other.set_aside, self.checked + other.checked)


@dataclass
class Script:
    """The script flags that were given for one role, by name; of one given twice, the last."""

    role: str = "actor"
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def shown(self, name: str) -> str:
        """The flag as it was typed."""
        words = " ".join([f"--{name}", *self.given[name]])
        return words if self.role == "actor" else f"{words} ({self.role})"


def is_known(word: str) -> bool:
    """Whether a word of a command line is a flag that is read here."""
    return word.startswith("--") and _name(word) in KNOWN


def _name(word: str) -> str:
    return word[2:].partition("=")[0].replace("_", "-")


def take(words: Sequence[str], role: str = "actor") -> tuple[list[str], Script]:
    """Split a command line into what is ours and the script flags. Raises UserError where their number of values is wrong."""
    rest, script = [], Script(role)
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not is_known(word):
            rest.append(word)
            continue
        name, following = _name(word), []
        if "=" in word:
            following = [word.partition("=")[2]]
        else:
            wanted = _values(name)
            most = len(words) if wanted is None else position + wanted
            while position < min(most, len(words)) and not words[position].startswith("--"):
                following.append(words[position])
                position += 1
        script.given[name] = tuple(following)
        _require_values(name, following)
    return rest, script


def _values(name: str) -> int | None:
    """How many values a flag takes; None is any number."""
    return FLAGS[name].values if name in FLAGS else int(name not in SWITCHES)


def _require_values(name: str, following: list[str]) -> None:
    wanted = _values(name)
    if wanted == 0 and following:
        raise UserError(f"--{name} takes no value, got {following[0]}")
    if wanted != 0 and not following:
        raise UserError(f"--{name} needs a value")


def apply(script: Script, given: Mapping[str, str]) -> tuple[dict[str, str], ScriptFlags]:
    """Flags of ours that the script's set, by field name, and what to tell about those that don't need the checkpoint.

    `given` holds what flags of ours were given themselves. Raises UserError for flags or values that would change what is
    trained in a way that does not exist here.
    """
    fields: dict[str, str] = {}
    translated, set_aside = [], []
    for name in script.given:
        if name not in FLAGS:
            continue
        row = FLAGS[name].row
        if isinstance(row, Refused):
            raise UserError(f"{script.shown(name)}: {row.reason}")
        if isinstance(row, SetAside):
            _require_harmless(script, name, row, given)
            set_aside.append((script.shown(name), row.reason))
            continue
        target, value = _translation(script, name, row, given)
        fields[target] = value
        here = f"--{target.replace('_', '-')}"
        translated.append((script.shown(name), here if value == "True" else f"{here} {value}"))
    return fields, ScriptFlags(tuple(translated), tuple(set_aside))


def _require_harmless(script: Script, name: str, row: SetAside, given: Mapping[str, str]) -> None:
    allowed = row.only.split()
    if allowed and any(not _is_one_of(value, allowed) for value in script.given[name]):
        raise UserError(f"{script.shown(name)}: {row.reason}; give {' or '.join(allowed)}")
    if row.unless and row.unless in given:
        raise UserError(f"{script.shown(name)} does not go with --{row.unless}, which takes all of a run's state, or nothing")


def _is_one_of(value: str, allowed: Iterable[str]) -> bool:
    """Equal as a word, or as a number."""
    try:
        return float(value) in [float(word) for word in allowed]
    except ValueError:
        return value in allowed


def _translation(script: Script, name: str, row: Translated | Share, given: Mapping[str, str]) -> tuple[str, str]:
    values, prefix = script.given[name], "" if script.role == "actor" else f"{script.role}_"
    if isinstance(row, Translated):
        if row.choices and values[0] not in row.choices.split():
            raise UserError(f"{script.shown(name)}: give {' or '.join(row.choices.split())}")
        return prefix + row.switch, "True"
    target = prefix + row.target
    if target in given:
        raise UserError(f"{script.shown(name)} and --{target.replace('_', '-')} say the same: give one of them")
    keys = [each for key in row.of for each in (prefix + key, key)]
    whole = next((given[key] for key in keys if key in given), "nothing")
    try:
        return target, f"{float(values[0]) * float(whole):g}"
    except ValueError:
        flags = " or ".join(f"--{key.replace('_', '-')}" for key in row.of)
        raise UserError(f"{script.shown(name)} must be a share of {flags}, got {whole}") from None


def check_shape(script: Script, folder: Path) -> ScriptFlags:
    """Hold the shape flags against the checkpoint's config.json. Raises UserError at the first that does not agree."""
    shapes = [name for name in script.given if name in CHECKS]
    if not shapes:
        return ScriptFlags()
    config = _text_config(json.loads((folder / "config.json").read_text()))
    first = {name: values[0] for name, values in script.given.items() if values}
    set_aside, checked = [], []
    for name in shapes:
        try:
            found = CHECKS[name](config, first.get(name, ""), first)
        except (SyntaxError, TypeError, ValueError):
            raise UserError(f"{script.shown(name)} can't be held against {folder / 'config.json'}: bad value") from None
        if found is None:
            set_aside.append((script.shown(name), NO_COUNTERPART))
        elif not found.agrees:
            raise UserError(f"{script.shown(name)} disagrees with {folder / 'config.json'}, where {found.key} is {found.value}")
        else:
            checked.append(script.shown(name))
    return ScriptFlags(set_aside=tuple(set_aside), checked=tuple(checked))


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's settings, which a model for more than text keeps apart."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config
