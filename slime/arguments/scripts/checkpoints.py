"""Checkpoints in Megatron's own format, which slime's launch scripts name and nothing here can read."""

import dataclasses
from pathlib import Path

from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.arguments.scripts.read import ScriptFlags


def is_megatron(folder: Path) -> bool:
    """Whether a folder holds a Megatron checkpoint, or is missing and called as slime calls a converted one."""
    if not folder.exists():
        return folder.name.endswith("torch_dist")
    marks = ("latest_checkpointed_iteration.txt", ".metadata", "common.pt")
    return any((folder / mark).is_file() for mark in marks) and not (folder / "config.json").exists()


def without_megatron_reference(config: RunConfig) -> RunConfig:
    """The config with --hf-checkpoint as its reference model where --ref-load names a Megatron checkpoint and no gradient
    depends on it. Raises UserError where one does."""
    ppo = config.ppo
    if ppo.ref_load is None or not ppo.uses_reference or not is_megatron(Path(ppo.ref_load)):
        return config
    shown = f"--ref-load {ppo.ref_load}"
    if ppo.kl_coef or ppo.kl_loss_coef:
        raise UserError(
            f"{shown} is a Megatron checkpoint, which can't be read here: give a Hugging Face folder, or leave it out if the "
            "reference is the model of --hf-checkpoint"
        )
    why = "a Megatron checkpoint; with a KL coefficient of 0 the reference, --hf-checkpoint, is for the metric alone"
    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(ppo, ref_load=None),
        script=config.script + ScriptFlags(set_aside=((shown, why),)),
    )


def require_own_state(config: RunConfig) -> None:
    """Raises UserError where --load or --save names a folder of Megatron's training state: it would not be gone on with."""
    for flag, folder in (("--load", config.run.load), ("--save", config.run.save)):
        if folder is not None and Path(folder).is_dir() and is_megatron(Path(folder)):
            raise UserError(f"{flag} {folder} holds a Megatron checkpoint, which can't be read here: give a new folder")
