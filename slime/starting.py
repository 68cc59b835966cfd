"""What a run begins with: its folder, its log and its processes."""

import secrets
from datetime import datetime
from pathlib import Path
from typing import Any

from fsdp_backend import device
from slime.arguments.errors import UserError
from slime.arguments.groups import WandbArgs
from slime.arguments.parse import as_flags
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.observability.run_log import RunLog
from slime.observability.writers import WandbWriter


def run_folder(config: RunConfig) -> Path:
    """Of --run-dir, or named by the time."""
    return Path(config.run.run_dir or f"runs/{datetime.now():%Y%m%d-%H%M%S}").resolve()


def open_log(config: RunConfig, run_dir: Path, num_rollout: int = 0, first_rollout: int | None = None) -> RunLog:
    """The files in the run's folder, and Weights & Biases where they are asked for."""
    passes = config.ppo.critic_passes if config.has_critic_updates else 0
    try:
        log = RunLog(run_dir, config.flags(), num_rollout, passes, first_rollout)
    except (OSError, ValueError) as error:
        raise UserError(f"--run-dir {error}") from error
    if config.wandb.use_wandb:
        try:
            log.add_writer(WandbWriter(config.flags(), **wandb_run(config.wandb, run_dir)))
        except ValueError as error:
            raise UserError(f"--use-wandb: {error}") from error
    return log


def wandb_run(flags: WandbArgs, run_dir: Path) -> dict[str, Any]:
    """What the flags ask of wandb.init."""
    suffix = "" if flags.disable_wandb_random_suffix else f"_{secrets.token_hex(3)}"
    group = flags.wandb_group and flags.wandb_group + suffix
    folder = Path(flags.wandb_dir or run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    run = {"project": flags.wandb_project, "group": group, "name": group, "entity": flags.wandb_team, "mode": flags.wandb_mode}
    return run | {"dir": str(folder), "settings": {"base_url": flags.wandb_host} if flags.wandb_host else None}


def launch(config: RunConfig, logs: Path) -> Cluster:
    """Start the processes of a run; what engines print goes to the folder `logs`."""
    if config.run.launcher == "local":
        from slime.local.launch import launch as start
    else:
        from slime.ray.launch import launch as start
    if config.engine.offload_rollout and not device.accelerator_count():
        print("note: --offload-rollout set aside: there is no GPU to leave")
    try:
        return start(config, logs)
    except ValueError as error:  # a checkpoint that can't be trained: nothing is running yet
        raise UserError(as_flags(str(error))) from error
