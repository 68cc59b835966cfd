"""Units of training state in the folder of --save: actor, critic and the driver's own, one folder a rollout.

A unit counts once its marker is there, which is written last and durably. What has no marker is a save that did not come to its
end: it is never read, and the next save of the same rollout replaces it.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_backend.state.checkpoint import export_checkpoint, write_durably
from slime.arguments.errors import UserError
from slime.arguments.groups import RunArgs
from slime.arguments.run_config import RunConfig

_MARKER = "committed.json"
_NAME = "rollout_{:06d}"


@dataclass(frozen=True)
class DriverState:
    """What the driver goes on from."""

    rollout_id: int
    """The last rollout trained on."""
    weight_version: int
    """Of the engines' weights."""
    roles: dict[str, str]
    """Whose state the unit holds, and in which folder: one of its own, or, by an absolute path, elsewhere."""
    data: dict[str, Any]
    """Where the data source stands; empty if rollouts are read from disk."""

    @property
    def rollouts_done(self) -> int:
        """How many there are, which is the number of the next."""
        return self.rollout_id + 1


@dataclass(frozen=True)
class Unit:
    """A unit of training state, committed or in work."""

    folder: Path
    state: DriverState

    def of_role(self, role: str) -> Path:
        """Where this role's state is."""
        return self.folder / self.state.roles[role]


def resumed_from(config: RunConfig) -> Unit | None:
    """The unit that --load goes on from; None for a run from the beginning. Says which.

    Raises UserError where --load holds none, unless it is the folder of --save and the run is the first; where the unit lacks a
    role of this run; and where --save would mix this run's units with others.
    """
    load, save = (None if folder is None else Path(folder) for folder in (config.run.load, config.run.save))
    if save is not None and save != load and newest(save) is not None:
        raise UserError(f"--save {save} holds checkpoints already: go on from them by --load {save}, or give another folder")
    if load is None:
        return None
    unit = newest(load)
    if unit is None:
        if load != save:
            raise UserError(f"--load {load} holds no committed checkpoint")
        print(f"no checkpoint in {load} yet: from the beginning")
        return None
    wanted = ["critic"] * config.has_critic_updates + ["actor"] * config.has_actor_updates
    missing = [role for role in wanted if role not in unit.state.roles]
    if missing:
        raise UserError(f"--load {unit.folder} has no {' and no '.join(missing)}: it is of a run without")
    if config.run.critic_load is not None and config.run.critic_start is None:
        half = Path(config.run.critic_load).absolute() / unit.folder.name / "critic"
        unit = replace(unit, state=replace(unit.state, roles=unit.state.roles | {"critic": str(half)}))
    print(f"going on from {unit.folder}: {unit.state.rollouts_done} of {config.run.num_rollout} rollouts are done")
    return unit


def going_on(config: RunConfig) -> RunConfig:
    """The same run, but from its own newest unit, or from where it began if it has none yet."""
    assert config.run.save is not None
    if config.run.load is not None and newest(Path(config.run.save)) is None:
        return config
    return replace(config, run=replace(config.run, load=config.run.save, critic_load=config.run.critic_start))


def newest(folder: Path) -> Unit | None:
    """The committed unit of the latest rollout; None if there is none. Raises UserError for a marker that can't be read."""
    committed = _committed(folder)
    return _read(committed[-1]) if committed else None


def _committed(folder: Path) -> list[Path]:
    """The units that count, by rollout."""
    return sorted(marker.parent for marker in folder.glob(f"rollout_*/{_MARKER}"))


def how_to_go_on(config: RunConfig) -> str:
    """What a person whose run has stopped wants to know."""
    last = None if config.run.save is None else newest(Path(config.run.save))
    if last is None:
        return "nothing is saved to go on from"
    return f"{last.state.rollouts_done} of {config.run.num_rollout} rollouts are saved: go on by --load {config.run.save}"


def _read(folder: Path) -> Unit:
    try:
        content = json.loads((folder / _MARKER).read_text())
        return Unit(folder, DriverState(**{**content, "roles": dict(content["roles"])}))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {folder / _MARKER} can't be read: {' '.join(str(error).split())}") from error


def unit_at(folder: Path) -> Unit:
    """The unit there, or the newest in a folder of units. Raises UserError if there is none."""
    unit = _read(folder) if (folder / _MARKER).exists() else newest(folder)
    if unit is None:
        raise UserError(f"{folder} is no committed checkpoint and holds none")
    return unit


def export(folder: Path, out: Path) -> list[Path]:
    """Write each role of a unit, or of the newest in a folder of units, as a Hugging Face folder under `out`; returns these.

    Raises UserError if there is no unit, if one of its files can't be read, or if something is at `out` already.
    """
    unit = unit_at(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: give a new folder")
    return [export_role(unit, role, out / role) for role in unit.state.roles]


def export_role(unit: Unit, role: str, out: Path) -> Path:
    """Write one role of a unit as a Hugging Face folder; returns `out`. Raises UserError if one of its files can't be read."""
    try:
        export_checkpoint(unit.of_role(role), out)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return out


def begin(run: RunArgs, state: DriverState) -> Unit:
    """A new unit in --save, with a folder for what each role will write; whose critic is elsewhere if --critic-save says so.

    Raises UserError if a folder can't be made, or if that rollout is committed already.
    """
    assert run.save is not None
    name = _NAME.format(state.rollout_id)
    elsewhere = {}
    if run.critic_save is not None and "critic" in state.roles:
        elsewhere["critic"] = str(Path(run.critic_save).absolute() / name / "critic")
    unit = Unit(Path(run.save) / name, replace(state, roles=state.roles | elsewhere))
    if (unit.folder / _MARKER).exists():
        raise UserError(
            f"--save {unit.folder} is a committed checkpoint already: give another folder, or --load this one to go on"
        )
    for folder in [unit.folder, *map(unit.of_role, unit.state.roles)]:
        flag = "--save" if folder.is_relative_to(unit.folder) else "--critic-save"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if folder == unit.folder:
                folder.mkdir()
        except OSError as error:
            raise UserError(f"{flag} {folder} can't be written: {error}") from error
    return unit


def commit(unit: Unit, keep_last: int | None) -> None:
    """Make the unit count, and then delete all but the last `keep_last` (None: keep all). Raises UserError if it can't be
    written; what was committed before still counts then."""
    try:
        write_durably(unit.folder / _MARKER, json.dumps(asdict(unit.state), indent=1) + "\n")
        for folder in _committed(unit.folder.parent)[: -keep_last if keep_last else 0]:
            old = _read(folder)
            # Without its marker it does not count, however far the deletion comes.
            (folder / _MARKER).unlink()
            shutil.rmtree(folder)
            for half in map(old.of_role, old.state.roles):  # of those inside, nothing is left
                shutil.rmtree(half, ignore_errors=True)
                with suppress(OSError):
                    half.parent.rmdir()
    except OSError as error:
        raise UserError(f"--save {unit.folder} can't be written: {error}") from error
