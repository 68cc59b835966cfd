"""The command `slime`. What is wrong with the input is one line on standard error and exit status 2."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slime.arguments.errors import ProcessDied, UserError
from slime.upstream import hand_over, wants_megatron

if TYPE_CHECKING:
    from slime.arguments.run_config import RunConfig

USAGE = """usage: slime COMMAND …

  train    train a language model by PPO with a critic: slime train --help
  eval     evaluate a checkpoint and train nothing, with flags of slime train
  estimate the memory that slime train with the same flags would take, without starting it
  export   write a checkpoint of --save as Hugging Face folders: slime export CHECKPOINT OUT
  report   draw report.html of a run folder again: slime report RUN_DIR
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": train_command,
        "eval": eval_command,
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


def configure(words: list[str], evaluates: bool = False) -> "RunConfig":
    """What the flags of a run, or of an evaluation alone, say."""
    from slime.arguments.parse import parse_arguments
    from slime.arguments.scripts.show import show

    config = parse_arguments(words, evaluates)
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
    from slime.starting import run_folder

    run_dir = run_folder(config)
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
    from slime.starting import launch, open_log
    from slime.stopping import StopRequest

    unit = resumed_from(config)
    first = 0 if unit is None else unit.state.rollouts_done
    if first >= config.run.num_rollout:
        print(f"nothing left to do: {first} rollouts are done, --num-rollout is {config.run.num_rollout}")
        return
    rollouts = RolloutManager(config)
    log = open_log(config, run_dir, config.run.num_rollout, None if config.run.load is None else first)
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


def eval_command(words: list[str]) -> None:
    """Evaluate once, on every evaluation data set."""
    config = configure(words, evaluates=True)
    from slime.evaluate import evaluate

    evaluate(config)


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
