"""From argv and YAML to a RunConfig. tyro parses; here is what it does not do: the YAML file, and the nearest name of an
unknown flag."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from fsdp_backend.config import PPOConfig, RoleConfig
from slime.arguments.epochs import rollouts_in_epochs
from slime.arguments.errors import UserError
from slime.arguments.evaluation import for_evaluation, words_not_needed
from slime.arguments.groups import ClusterArgs, DataArgs, EngineArgs, EvalArgs, RewardArgs, RolloutArgs, RunArgs, WandbArgs
from slime.arguments.role_file import RoleFile, read_role_file
from slime.arguments.roles import CRITIC_SWITCHES, CriticOverrides, critic_role
from slime.arguments.rules import EVALUATION_RULES, RULES, check
from slime.arguments.run_config import RunConfig
from slime.arguments.scripts.checkpoints import without_megatron_reference
from slime.arguments.scripts.read import KNOWN, Script, ScriptFlags, apply, check_shape, is_known, take
from slime.arguments.sglang_flags import is_sglang_flag, split_sglang_flags
from slime.arguments.yaml_words import as_words, load

DESCRIPTION = """Train a language model by PPO with a critic.

--config FILE.yaml reads flags from a file (`rollout_batch_size: 64`); what stands on the command line wins over it.

A launch script written for slime runs as it is: Megatron's flags are said otherwise here, held against the checkpoint, or set
aside, and the run prints which. --megatron-config-path FILE.yaml is read too: settings of one role."""

_FILES = ("config", "megatron_config_path")
"""Flags that name a file with more flags."""


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
    wandb: WandbArgs
    engine: EngineArgs


def known_flags() -> dict[str, Any]:
    """Every flag's field name and the dataclass it stands in."""
    return {
        field.name: section.type
        for section in dataclasses.fields(CommandLine)
        for field in dataclasses.fields(section.type)  # type: ignore[arg-type]
    }


def parse_arguments(argv: Sequence[str], evaluates: bool = False) -> RunConfig:
    """Raises UserError (one line) for unknown flags, bad values and flags that contradict each other; exits for --help.
    `evaluates`: for an evaluation alone, which needs no more than a checkpoint and what to evaluate it on.

    The value of --wandb-key is no part of the config: it goes into the environment."""
    given, config_file = _take_value(list(argv), "--config")
    on_command_line = {_flag_name(token) for token in given if token.startswith("--")}
    merged, role_path = _take_value(_from_yaml(config_file, on_command_line) + given, "--megatron-config-path")
    merged, key = _take_value(merged, "--wandb-key")
    if key is not None:
        os.environ["WANDB_API_KEY"] = key
    merged, for_sglang = split_sglang_flags(merged, known_flags())
    own, script = take(merged)
    for token in own:
        if token.startswith("--") and token != "--help":
            _require_known(token)
    scripts, notes = [script, Script("critic")], ScriptFlags()
    from_epochs = not evaluates and _counts_epochs(own)
    if "--help" not in own and "-h" not in own:
        roles = RoleFile() if role_path is None else read_role_file(Path(role_path), known_flags())
        own += _new_words(roles, _values(own), role_path)
        script.given |= roles.scripts["actor"].given
        scripts[1] = roles.scripts["critic"]
        words, notes = _said_otherwise(scripts, _values(own))
        own, notes = own + words, notes + roles.notes
        if evaluates:
            own += words_not_needed(_values(own))
        if from_epochs:
            own += ["--num-rollout", "1"]  # until the data has been counted
        _require_all(own)
    parsed = _tyro(_joined(_spell_out_critic_switches(own), "--rollout-sample-hook-path"))
    if from_epochs:
        count = rollouts_in_epochs(parsed.run.num_epoch, parsed.rollout.rollout_batch_size, parsed.data)
        parsed = dataclasses.replace(parsed, run=dataclasses.replace(parsed.run, num_rollout=count, num_epoch=None))
    config = _config(parsed, notes, for_sglang)
    config = for_evaluation(config) if evaluates else without_megatron_reference(config)
    check(config, EVALUATION_RULES if evaluates else RULES)
    checked = check_shape(scripts[0], Path(config.actor.hf_checkpoint))
    if config.ppo.uses_critic and not evaluates:
        checked += check_shape(scripts[1], Path(config.critic.hf_checkpoint))
    return dataclasses.replace(config, script=config.script + checked)


def _config(parsed: CommandLine, script: ScriptFlags, for_sglang: dict[str, tuple[str, ...]]) -> RunConfig:
    try:
        return RunConfig(
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
            wandb=parsed.wandb,
            script=script,
            sglang=for_sglang,
        )
    except ValueError as error:
        raise UserError(as_flags(str(error))) from error


def _new_words(roles: RoleFile, given: dict[str, str], file: str | None) -> list[str]:
    """The role file's flags that were not given already; UserError for one that was, with another value."""
    words = []
    for name, tokens in roles.flags.items():
        value = _values(tokens).get(name)
        if name not in given:
            words += tokens
        elif value is not None and not _equal(value, given[name]):
            raise UserError(
                f"{_flag(name)} is {given[name]} on the command line and {value} in --megatron-config-path {file}: say it once"
            )
    return words


def _said_otherwise(scripts: list[Script], given: dict[str, str]) -> tuple[list[str], ScriptFlags]:
    """Words for what script flags set, and what became of each."""
    words, notes = [], ScriptFlags()
    for script in scripts:
        fields, told = apply(script, given)
        notes += told
        for name, value in fields.items():
            if given.get(name, value) != value:
                raise UserError(f"{told.translated[0][0]} and --no-{_flag(name)[2:]} contradict each other")
            words += [] if name in given else [_flag(name), *([] if value == "True" else [value])]
    return words, notes


def _values(tokens: list[str]) -> dict[str, str]:
    """What each flag of ours was given, by field name; switches as True and False."""
    found: dict[str, str] = {}
    name = ""
    for token in tokens:
        if token.startswith("--"):
            name, equals, value = _flag_name(token), *token.partition("=")[1:]
            off = token.startswith("--no-") and name != token[2:].replace("-", "_")
            found[name] = value if equals else str(not off)
            bare = not equals
        elif name:
            found[name], bare = token if bare else f"{found[name]} {token}", False
    return found


def _equal(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


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


def _counts_epochs(tokens: list[str]) -> bool:
    given = {_flag_name(token) for token in tokens if token.startswith("--")}
    return "num_epoch" in given and "num_rollout" not in given


def _take_value(argv: list[str], flag: str) -> tuple[list[str], str | None]:
    """Take `FLAG VALUE` (or FLAG=VALUE) out of argv."""
    rest: list[str] = []
    found: str | None = None
    tokens = iter(argv)
    for token in tokens:
        name, equals, value = token.partition("=")
        if name.replace("_", "-") != flag:
            rest.append(token)
            continue
        value = value if equals else next(tokens, "")
        if not value or value.startswith("--"):
            raise UserError(f"{flag} needs {'a file' if flag[2:].replace('-', '_') in _FILES else 'a value'}")
        if found is not None:
            raise UserError(f"{flag} was given twice")
        found = value
    return rest, found


def _from_yaml(file: str | None, overridden: set[str]) -> list[str]:
    """The file's flags as command-line tokens, without those that the command line sets itself."""
    if file is None:
        return []
    content = load("--config", Path(file))
    if not isinstance(content, dict):
        raise UserError(f"--config {file}: expected a mapping of flags to values")
    tokens: list[str] = []
    for key, value in content.items():
        name = str(key).replace("-", "_")
        flag = _flag(name)
        if name in ("config", "help"):
            raise UserError(f"--config {file}: {name} stands on the command line, not in the file")
        if name in overridden or value is None:
            _require_known(flag)
        else:
            tokens += as_words(flag, value)
    return tokens


def _flag_name(token: str) -> str:
    """`--no-use-kl-loss=…` to `use_kl_loss`: the field that a token sets."""
    name = token[2:].partition("=")[0].replace("-", "_")
    return name.removeprefix("no_") if name not in known_flags() else name


def _require_known(token: str) -> None:
    name = _flag_name(token)
    known = known_flags()
    if name in known or name in _FILES or is_known(token) or is_sglang_flag(name, known):
        return
    candidates = [*known, *_FILES, *(each.replace("-", "_") for each in KNOWN)]
    nearest = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    hint = f"; did you mean {_flag(nearest[0])}?" if nearest else "; see slime train --help"
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


def _joined(argv: list[str], flag: str) -> list[str]:
    """A flag that may be given several times, as in slime, once with all its values."""
    values, rest, taken = [], [], False
    for token in argv:
        name, equals, value = token.partition("=")
        if token.startswith("--"):
            taken = name.replace("_", "-") == flag
        if not taken:
            rest.append(token)
        elif not token.startswith("--"):
            values.append(token)
        elif equals:
            values.append(value)
    return [*rest, flag, *values] if values else rest


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
