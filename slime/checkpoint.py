"""Units of training state in the folder of --save: actor, critic and the driver's own, one folder a rollout.

A unit counts once its marker is there, which is written last and durably. What has no marker is a save that did not come to its
end: it is never read, and the next save of the same rollout replaces it.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsdp_backend.state.checkpoint import export_checkpoint, write_durably
from slime.arguments.errors import UserError
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
    roles: tuple[str, ...]
    """Whose state the unit holds."""
    data: dict[str, Any]
    """Where the data source stands; empty if rollouts are read from disk."""

    @property
    def rollouts_done(self) -> int:
        """How many there are, which is the number of the next."""
        return self.rollout_id + 1


@dataclass(frozen=True)
class Unit:
    """A committed unit."""

    folder: Path
    state: DriverState


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
    print(f"going on from {unit.folder}: {unit.state.rollouts_done} of {config.run.num_rollout} rollouts are done")
    return unit


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
        return Unit(folder, DriverState(**{**content, "roles": tuple(content["roles"])}))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {folder / _MARKER} can't be read: {' '.join(str(error).split())}") from error


def export(folder: Path, out: Path) -> list[Path]:
    """Write each role of a unit, or of the newest in a folder of units, as a Hugging Face folder under `out`; returns these.

    Raises UserError if there is no unit, if one of its files can't be read, or if something is at `out` already.
    """
    unit = _read(folder) if (folder / _MARKER).exists() else newest(folder)
    if unit is None:
        raise UserError(f"{folder} is no committed checkpoint and holds none")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: give a new folder")
    try:
        for role in unit.state.roles:
            export_checkpoint(unit.folder / role, out / role)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return [out / role for role in unit.state.roles]


def begin(folder: Path, rollout_id: int) -> Path:
    """The folder of a new unit, empty. Raises UserError if it can't be made, or if that rollout is committed already."""
    unit = folder / _NAME.format(rollout_id)
    if (unit / _MARKER).exists():
        raise UserError(f"--save {unit} is a committed checkpoint already: give another folder, or --load this one to go on")
    try:
        shutil.rmtree(unit, ignore_errors=True)
        unit.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--save {unit} can't be written: {error}") from error
    return unit


def commit(unit: Path, state: DriverState, keep_last: int | None) -> None:
    """Make the unit count, and then delete all but the last `keep_last` (None: keep all)."""
    write_durably(unit / _MARKER, json.dumps(asdict(state), indent=1) + "\n")
    for old in _committed(unit.parent)[: -keep_last if keep_last else 0]:
        # Without its marker it does not count, however far the deletion comes.
        (old / _MARKER).unlink()
        shutil.rmtree(old)
