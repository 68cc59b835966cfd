"""From argv and YAML to a RunConfig. tyro parses; here is what it does not do: the YAML file, and the nearest name of an
unknown flag."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
import yaml

from fsdp_backend.config import PPOConfig, RoleConfig
from slime.arguments.errors import UserError
from slime.arguments.groups import ClusterArgs, DataArgs, EngineArgs, EvalArgs, RewardArgs, RolloutArgs, RunArgs
from slime.arguments.roles import CRITIC_SWITCHES, CriticOverrides, critic_role
from slime.arguments.rules import check
from slime.arguments.run_config import RunConfig
from slime.arguments.sglang_flags import is_sglang_flag, split_sglang_flags

DESCRIPTION = """Train a language model by PPO with a critic.

--config FILE.yaml reads flags from a file (`rollout_batch_size: 64`); what stands on the command line wins over it."""


@dataclass(frozen=True)
class CommandLine:
    """All flag groups, in the order of --help."""

    run: RunArgs
    data: DataArgs
    rollout: RolloutArgs
    reward: RewardArgs
    ppo: PPOConfig
    actor: RoleConfig
    critic: CriticOverrides
    eval: EvalArgs
    cluster: ClusterArgs
    engine: EngineArgs


def known_flags() -> dict[str, Any]:
    """Every flag's field name and the dataclass it stands in."""
    return {
        field.name: section.type
        for section in dataclasses.fields(CommandLine)
        for field in dataclasses.fields(section.type)  # type: ignore[arg-type]
    }


def parse_arguments(argv: Sequence[str]) -> RunConfig:
    """Raises UserError (one line) for unknown flags, bad values and flags that contradict each other; exits for --help."""
    given, config_file = _split_config(list(argv))
    on_command_line = {_flag_name(token) for token in given if token.startswith("--")}
    merged, for_sglang = split_sglang_flags(_from_yaml(config_file, on_command_line) + given, known_flags())
    for token in merged:
        if token.startswith("--") and token != "--help":
            _require_known(token)
    if "--help" not in merged and "-h" not in merged:
        _require_all(merged)
    parsed = _tyro(_spell_out_critic_switches(merged))
    try:
        config = RunConfig(
            run=parsed.run,
            cluster=parsed.cluster,
            engine=parsed.engine,
            data=parsed.data,
            rollout=parsed.rollout,
            reward=parsed.reward,
            eval=parsed.eval,
            ppo=parsed.ppo,
            actor=parsed.actor,
            critic=critic_role(parsed.actor, parsed.critic, parsed.run.critic_start),
            sglang=for_sglang,
        )
    except ValueError as error:
        raise UserError(as_flags(str(error))) from error
    check(config)
    return config


def _tyro(tokens: list[str]) -> CommandLine:
    """Let tyro parse, and turn the box it prints for a bad value into one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(tyro.conf.OmitArgPrefixes[CommandLine], prog="slime train", description=DESCRIPTION, args=tokens)
    except SystemExit as exit_:
        if not exit_.code:
            raise
        text = [line.strip("│╭╰╮╯ ") for line in printed.getvalue().splitlines()[1:]]
        message = " ".join(itertools.takewhile(lambda line: not line.startswith("─"), text))
        sections = "|".join(field.name for field in dataclasses.fields(CommandLine))
        message = re.sub(rf"^Error parsing (?:(?:{sections}): )?", "", message).partition(" Got errors:")[0].strip()
        raise UserError(as_flags(message)) from None


def _require_all(tokens: list[str]) -> None:
    given = {_flag_name(token) for token in tokens if token.startswith("--")}
    needed = [
        _flag(field.name)
        for section in dataclasses.fields(CommandLine)
        for field in dataclasses.fields(section.type)  # type: ignore[arg-type]
        if field.default in (dataclasses.MISSING, tyro.MISSING) and field.name not in given
    ]
    if needed:
        raise UserError(f"missing {', '.join(needed)}; see slime train --help")


def _split_config(argv: list[str]) -> tuple[list[str], Path | None]:
    """Take `--config FILE` (or --config=FILE) out of argv."""
    rest: list[str] = []
    found: Path | None = None
    tokens = iter(argv)
    for token in tokens:
        if token == "--config" or token.startswith("--config="):
            value = token.partition("=")[2] or next(tokens, "")
            if not value:
                raise UserError("--config needs a file")
            if found is not None:
                raise UserError("--config was given twice")
            found = Path(value)
        else:
            rest.append(token)
    return rest, found


def _from_yaml(file: Path | None, overridden: set[str]) -> list[str]:
    """The file's flags as command-line tokens, without those that the command line sets itself."""
    if file is None:
        return []
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--config {file}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"--config {file}: expected a mapping of flags to values")
    tokens: list[str] = []
    for key, value in content.items():
        name = str(key).replace("-", "_")
        flag = f"--{name.replace('_', '-')}"
        if name in ("config", "help"):
            raise UserError(f"--config {file}: {name} stands on the command line, not in the file")
        if name in overridden or value is None:
            _require_known(flag)
        elif isinstance(value, bool):
            tokens.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list):
            tokens += [flag, *map(str, value)]
        else:
            tokens += [flag, str(value)]
    return tokens


def _flag_name(token: str) -> str:
    """`--no-use-kl-loss=…` to `use_kl_loss`: the field that a token sets."""
    name = token[2:].partition("=")[0].replace("-", "_")
    return name.removeprefix("no_") if name not in known_flags() else name


def _require_known(token: str) -> None:
    name = _flag_name(token)
    known = known_flags()
    if name in known or is_sglang_flag(name, known):
        return
    nearest = difflib.get_close_matches(name, [*known, "config"], n=1, cutoff=0.5)
    hint = f"; did you mean --{nearest[0].replace('_', '-')}?" if nearest else "; see slime train --help"
    raise UserError(f"unknown flag {token.partition('=')[0]}{hint}")


def _spell_out_critic_switches(argv: list[str]) -> list[str]:
    """`--critic-bf16` and `--no-critic-bf16` as `--critic-bf16 True` and `False`: unset means the actor's, so they take a
    value."""
    tokens: list[str] = []
    for i, token in enumerate(argv):
        bare = token.startswith("--") and "=" not in token and _flag_name(token) in CRITIC_SWITCHES
        has_value = i + 1 < len(argv) and argv[i + 1] in ("True", "False", "None")
        if bare and token.startswith("--no-"):
            tokens += [f"--{token[5:]}", "False"]
        elif bare and not has_value:
            tokens += [token, "True"]
        else:
            tokens.append(token)
    return tokens


def as_flags(message: str) -> str:
    """Write the field names in an engine's error as the flags that a person typed."""
    known = known_flags()
    return re.sub(
        r"(?<![-\w])[a-z][a-z0-9]*(?:_[a-z0-9]+)*\b", lambda m: _flag(m[0]) if _is_flag_word(m[0], known) else m[0], message
    )


def _is_flag_word(word: str, known: dict[str, Any]) -> bool:
    return word in known and ("_" in word or word in ("lr", "gamma", "lambd"))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
