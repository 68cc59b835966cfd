"""slime eval: one evaluation of one checkpoint, by engines alone."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from slime.arguments.errors import ProcessDied, UserError
from slime.arguments.notices import notices
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.backends.start_engine import require_engine
from slime.checkpoint import export_role, unit_at
from slime.generation import Generation
from slime.observability.names import match
from slime.rollout.manager import RolloutManager
from slime.starting import launch, open_log, run_folder


def evaluate(config: RunConfig) -> None:
    """Evaluate --hf-checkpoint, or the actor of --load, as training would; print the results and leave them in the run folder.

    Raises UserError for input that can't be used, or if a process dies.
    """
    require_engine(config)
    for notice in notices(config):
        print(f"note: {notice}")
    with ExitStack() as resources:
        model, rollouts_done = config, 0
        if config.run.load is not None:
            folder = Path(resources.enter_context(TemporaryDirectory(prefix="slime-eval-")))
            model, rollouts_done = _with_actor_of(Path(config.run.load), config, folder / "actor")
        rollouts = RolloutManager(model)
        run_dir = run_folder(config)
        log = open_log(config, run_dir)
        print(f"run folder: {run_dir}\nstarting engines and loading the model …", flush=True)
        cluster = launch(model, run_dir / "engines")
        resources.callback(cluster.close)
        assert cluster.engines is not None
        rollouts.connect(*cluster.engines.address, cluster.engines.urls)
        weights = WeightSync(None, cluster.engines, model, run_dir / "weight_transfer")
        generation = Generation(config, rollouts, cluster, weights, log)
        try:
            with log:
                metrics = generation.evaluation(rollouts_done)
                log.write_final_evaluation(metrics | log.take_times(), rollouts_done)
        except ProcessDied as error:
            raise UserError(str(error)) from error
    Console().print(_table(metrics))


def _with_actor_of(folder: Path, config: RunConfig, out: Path) -> tuple[RunConfig, int]:
    """The config with the actor of a unit, written to `out`, as its model; and how many rollouts that was trained on."""
    unit = unit_at(folder)
    if "actor" not in unit.state.roles:
        raise UserError(f"--load {unit.folder} has no actor: its policy is --hf-checkpoint, evaluate that without --load")
    print(f"evaluating the actor of {unit.folder}", flush=True)
    exported = export_role(unit, "actor", out)
    return replace(config, actor=replace(config.actor, hf_checkpoint=str(exported))), unit.state.rollouts_done


def _table(metrics: dict[str, float]) -> Table:
    """A row a data set, a column a metric; what an evaluation function reports of its own has rows of its own."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        named = match("eval/{dataset}/{name}", name)
        whose, what = (named["dataset"], named["name"]) if named else (name.removeprefix("eval/"), "value")
        rows.setdefault(whose, {})[what] = value
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table(title="Evaluation")
    table.add_column("data set")
    for column in columns:
        table.add_column(column, justify="right")
    for whose, row in rows.items():
        table.add_row(whose, *[f"{row[column]:.4g}" if column in row else "" for column in columns])
    return table
