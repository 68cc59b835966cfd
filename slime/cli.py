"""The command `slime`. What is wrong with the input is one line on standard error and exit status 2."""

import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.arguments.errors import ProcessDied, UserError
from slime.upstream import hand_over, wants_megatron

if TYPE_CHECKING:
    from slime.arguments.groups import WandbArgs
    from slime.arguments.run_config import RunConfig
    from slime.backends.cluster import Cluster
    from slime.observability.run_log import RunLog

USAGE = """usage: slime COMMAND …

  train    train a language model by PPO with a critic: slime train --help
  estimate the memory that slime train with the same flags would take, without starting it
  export   write a checkpoint of --save as Hugging Face folders: slime export CHECKPOINT OUT
  report   draw report.html of a run folder again: slime report RUN_DIR
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": train_command,
        "estimate": estimate_command,
        "export": export_command,
        "report": report_command,
    }
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    try:
        if words[0] not in commands:
            raise UserError(f"unknown command {words[0]!r}; see slime --help")
        commands[words[0]](words[1:])
    except UserError as error:
        print(f"slime: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"slime: interrupted {stopped}".strip(), file=sys.stderr)
        return 130
    return 0


def configure(words: list[str]) -> "RunConfig":
    """What the flags of a run say."""
    from slime.arguments.parse import parse_arguments
    from slime.arguments.scripts.show import show

    config = parse_arguments(words)
    show(config.script)
    # Plug-ins are named as modules and found, as with `python -m`, from the folder the command runs in.
    sys.path.insert(0, str(Path.cwd()))
    return config


def train_command(words: list[str]) -> None:
    """Check everything that can be checked, then start processes and train."""
    if wants_megatron(words):
        hand_over(words)
    config = configure(words)
    from slime.arguments.notices import notices
    from slime.backends.start_engine import require_engine
    from slime.checkpoint import going_on, how_to_go_on

    run_dir = Path(config.run.run_dir or f"runs/{datetime.now():%Y%m%d-%H%M%S}").resolve()
    for notice in notices(config):
        print(f"note: {notice}")
    require_engine(config)
    for restarts_left in reversed(range(config.run.restarts + 1)):
        try:
            run_to_the_end(config, run_dir)
            return
        except ProcessDied as error:
            if not restarts_left:
                raise UserError(f"{error}; {how_to_go_on(config)}") from error
            print(f"{error}\nstarting again; --restarts left after this: {restarts_left - 1}", flush=True)
            config = going_on(config)


def run_to_the_end(config: "RunConfig", run_dir: Path) -> None:
    """Start processes and train, from the beginning or from a checkpoint. Raises ProcessDied if one of them dies."""
    # From here on torch is needed, which --help and flag errors do without.
    from slime.checkpoint import resumed_from
    from slime.loop import train
    from slime.rollout.manager import RolloutManager
    from slime.stopping import StopRequest

    unit = resumed_from(config)
    first = 0 if unit is None else unit.state.rollouts_done
    if first >= config.run.num_rollout:
        print(f"nothing left to do: {first} rollouts are done, --num-rollout is {config.run.num_rollout}")
        return
    rollouts = RolloutManager(config)
    log = open_log(config, run_dir, None if config.run.load is None else first)
    print(f"run folder: {run_dir}\nstarting processes and loading models …", flush=True)
    cluster = launch(config, run_dir / "engines")
    print(f"started: {cluster.describe()}", flush=True)
    try:
        with log, StopRequest() as stop:
            if cluster.engines is not None:
                rollouts.connect(*cluster.engines.address, cluster.engines.urls)
            train(config, rollouts, cluster, log, stop, unit)
    finally:
        cluster.close()
    for saved in (config.run.save_hf, config.run.critic_save_hf, run_dir / "checkpoints" / "latest"):
        if saved is not None and (not isinstance(saved, Path) or saved.exists()):
            print(f"checkpoint: {saved}")


def open_log(config: "RunConfig", run_dir: Path, first_rollout: int | None) -> "RunLog":
    """The run's folder, and Weights & Biases where they are asked for."""
    from slime.observability.run_log import RunLog
    from slime.observability.writers import WandbWriter

    passes = config.ppo.critic_passes if config.has_critic_updates else 0
    try:
        log = RunLog(run_dir, config.flags(), config.run.num_rollout, passes, first_rollout)
    except (OSError, ValueError) as error:
        raise UserError(f"--run-dir {error}") from error
    if config.wandb.use_wandb:
        try:
            log.add_writer(WandbWriter(config.flags(), **wandb_run(config.wandb, run_dir)))
        except ValueError as error:
            raise UserError(f"--use-wandb: {error}") from error
    return log


def wandb_run(flags: "WandbArgs", run_dir: Path) -> dict[str, Any]:
    """What the flags ask of wandb.init."""
    suffix = "" if flags.disable_wandb_random_suffix else f"_{secrets.token_hex(3)}"
    group = flags.wandb_group and flags.wandb_group + suffix
    folder = Path(flags.wandb_dir or run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    run = {"project": flags.wandb_project, "group": group, "name": group, "entity": flags.wandb_team, "mode": flags.wandb_mode}
    return run | {"dir": str(folder), "settings": {"base_url": flags.wandb_host} if flags.wandb_host else None}


def launch(config: "RunConfig", logs: Path) -> "Cluster":
    """Start the processes of a run; what engines print goes to the folder `logs`."""
    from slime.arguments.parse import as_flags

    if config.run.launcher == "local":
        from slime.local.launch import launch as start
    else:
        from slime.ray.launch import launch as start
    from fsdp_backend import device

    if config.engine.offload_rollout and not device.accelerator_count():
        print("note: --offload-rollout set aside: there is no GPU to leave")
    try:
        return start(config, logs)
    except ValueError as error:  # a checkpoint that can't be trained: nothing is running yet
        raise UserError(as_flags(str(error))) from error


def estimate_command(words: list[str]) -> None:
    """Print what a run with these flags would need."""
    config = configure(words)
    from slime.arguments.parse import as_flags
    from slime.estimate import print_estimate

    try:
        print_estimate(config)
    except ValueError as error:  # a checkpoint that can't be trained
        raise UserError(as_flags(str(error))) from error


def export_command(words: list[str]) -> None:
    """Write both models of a checkpoint."""
    from slime.checkpoint import export

    if len(words) != 2:
        raise UserError("usage: slime export CHECKPOINT OUT")
    for folder in export(Path(words[0]), Path(words[1])):
        print(folder)


def report_command(words: list[str]) -> None:
    """Draw the report of a run folder."""
    from slime.observability.report import write_report

    if len(words) != 1:
        raise UserError("usage: slime report RUN_DIR")
    try:
        print(write_report(Path(words[0])))
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
