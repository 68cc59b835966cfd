"""The train loop: generate, value, train critic and actor, hand the weights on."""

from dataclasses import dataclass
from pathlib import Path

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.training.targets import with_advantages, with_returns
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.fsdp_utils.group import Pending
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.backends.fsdp_utils.worker import Trained
from slime.checkpoint import DriverState, Unit, begin, commit, how_to_go_on
from slime.model_card import write_card
from slime.observability.run_log import RunLog
from slime.rollout.manager import RolloutManager
from slime.stopping import StopRequest


@dataclass
class Unfinished:
    """A rollout whose critic may still be training."""

    rollout_id: int
    metrics: dict[str, float]
    tokens: int
    critic: Pending[Trained] | None


def train(
    config: RunConfig, rollouts: RolloutManager, cluster: Cluster, log: RunLog, stop: StopRequest, unit: Unit | None = None
) -> None:
    """Run `num_rollout` rollouts, or those left after a checkpoint. The critic's K passes run beside the actor's update, the
    weight update and the next generation; the first thing to wait for them is the next rollout's values (or, with values after
    the update, the actor)."""
    weights = WeightSync(cluster.actor, cluster.engine_urls, log.run_dir / "weight_transfer")
    first = 0 if unit is None else resume(unit, rollouts, cluster, weights)
    unfinished: Unfinished | None = None
    try:
        for rollout_id in range(first, config.run.num_rollout):
            metrics = evaluate(config, rollouts, log, rollout_id)
            with log.phase("generate"):
                batch, rollout_metrics = rollouts.generate(rollout_id)
            batch = with_old_log_probs(batch, cluster, config, log, rollout_id)
            previous, unfinished = unfinished, None
            finish(previous, log)
            batch = with_old_values(batch, cluster, config, log)
            critic_update = None if cluster.critic is None else cluster.critic.start_update(batch, rollout_id)
            if config.trains_actor(rollout_id):
                batch = with_actor_columns(batch, critic_update, cluster, config, log)
                metrics |= update_actor(batch, cluster, log, rollout_id)
                if cluster.engine_urls:
                    with log.phase("update_weights"):
                        weights.update()
            last, stopping = rollout_id + 1 == config.run.num_rollout, stop.requested
            due = is_due(config.run.save_interval, rollout_id + 1) or last or stopping
            metrics |= rollout_metrics
            if due:
                with log.phase("save"):
                    export(config, cluster, log.run_dir / "checkpoints", rollout_id, metrics)
            unfinished = Unfinished(rollout_id, metrics | log.take_times(), len(batch.tokens), critic_update)
            if due and config.run.save is not None:
                previous, unfinished = unfinished, None
                finish(previous, log)
                save(config, rollouts, cluster, weights, log, rollout_id)
            if config.cluster.offload_train:
                leave_accelerator(cluster)
            if stopping and not last:
                raise KeyboardInterrupt(f"after rollout {rollout_id + 1}; {how_to_go_on(config)}")
    finally:  # a rollout is recorded even if the one after it fails
        finish(unfinished, log)
    final = evaluate(config, rollouts, log, config.run.num_rollout, last=True)
    if final:
        log.write_final_evaluation(final)


def resume(unit: Unit, rollouts: RolloutManager, cluster: Cluster, weights: WeightSync) -> int:
    """Put a checkpoint's state into every part; returns the rollout to go on with."""
    for role, group in cluster.roles().items():
        group.load(unit.folder / role)
    rollouts.load_state_dict(unit.state.data)
    weights.resume(unit.state.weight_version)
    return unit.state.rollouts_done


def save(
    config: RunConfig, rollouts: RolloutManager, cluster: Cluster, weights: WeightSync, log: RunLog, rollout_id: int
) -> None:
    """Write all that a run needs to go on after this rollout, as one unit. The rollout's own metrics are on disk by now."""
    assert config.run.save is not None
    with log.phase("save"):
        folder = begin(Path(config.run.save), rollout_id)
        for pending in [group.start_save(folder / role) for role, group in cluster.roles().items()]:
            pending.result()
        state = DriverState(rollout_id, weights.version, tuple(cluster.roles()), rollouts.state_dict())
        commit(folder, state, config.run.keep_last)


def with_old_log_probs(batch: RolloutBatch, cluster: Cluster, config: RunConfig, log: RunLog, rollout_id: int) -> RolloutBatch:
    """Add the actor's log-probs from before its update, and the reference model's, where they are needed."""
    if cluster.actor is None or not config.ppo.generates or not config.ppo.needs_old_policy(rollout_id):
        return batch
    with log.phase("log_probs"):
        log_probs, ref_log_probs = cluster.actor.log_probs(batch, rollout_id)
    return batch.with_columns(log_probs=log_probs, ref_log_probs=ref_log_probs)


def with_old_values(batch: RolloutBatch, cluster: Cluster, config: RunConfig, log: RunLog) -> RolloutBatch:
    """Add V_old and the critic's targets, where there is a critic."""
    if cluster.critic is None:
        return batch
    with log.phase("values"):
        values = cluster.critic.values(batch)
    return with_returns(batch.with_columns(values=values), config.ppo)


def with_actor_columns(
    batch: RolloutBatch, critic_update: Pending[Trained] | None, cluster: Cluster, config: RunConfig, log: RunLog
) -> RolloutBatch:
    """Add the advantages, of V_old or of the values after the critic's update."""
    if config.ppo.advantage_values == "after-update" and critic_update is not None and cluster.critic is not None:
        with log.phase("critic_wait"):
            critic_update.result()
        with log.phase("values"):
            batch = batch.with_columns(values=cluster.critic.values(batch))
    return with_advantages(batch, config.ppo) if config.ppo.generates else batch


def update_actor(batch: RolloutBatch, cluster: Cluster, log: RunLog, rollout_id: int) -> dict[str, float]:
    """Train the actor; returns its metrics."""
    assert cluster.actor is not None
    with log.phase("actor_update"):
        return cluster.actor.start_update(batch, rollout_id).result().metrics


def leave_accelerator(cluster: Cluster) -> None:
    """Wait until the actor has left it; the critic leaves when its passes are done."""
    sleeping = {role: group.start_sleep() for role, group in cluster.roles().items()}
    if "actor" in sleeping:
        sleeping["actor"].result()


def evaluate(config: RunConfig, rollouts: RolloutManager, log: RunLog, rollout_id: int, last: bool = False) -> dict[str, float]:
    """Metrics of the policy after `rollout_id` rollouts of training, if an evaluation is due then; else none."""
    skipped = rollout_id == 0 and config.eval.skip_eval_before_train
    if config.eval.eval_interval is None or skipped or not (last or is_due(config.eval.eval_interval, rollout_id)):
        return {}
    with log.phase("evaluate"):
        return rollouts.evaluate(rollout_id)


def is_due(interval: int | None, rollouts_trained: int) -> bool:
    """Whether something done every `interval` rollouts is due; never for None."""
    return interval is not None and rollouts_trained % interval == 0


def finish(rollout: Unfinished | None, log: RunLog) -> None:
    """Wait for the rollout's critic and record the rollout."""
    if rollout is None:
        return
    metrics = rollout.metrics
    if rollout.critic is not None:
        with log.phase("critic_wait"):
            trained = rollout.critic.result()
        log.add_span("critic_update", trained.started, trained.ended)
        metrics = metrics | trained.metrics | {"time/critic_update": trained.ended - trained.started}
    log.write(rollout.rollout_id, metrics, rollout.tokens)


def export(config: RunConfig, cluster: Cluster, folder: Path, rollout_id: int, metrics: dict[str, float]) -> None:
    """Write both roles as Hugging Face folders, where --save-hf and --critic-save-hf say or under `folder`/rollout_<id>, and
    point `folder`/latest at the latter once all are whole."""
    patterns = {"actor": config.run.save_hf, "critic": config.run.critic_save_hf}
    for role, group in cluster.roles().items():
        pattern = patterns[role] or f"{folder}/rollout_{{rollout_id}}/{role}"
        target = Path(pattern.replace("{rollout_id}", str(rollout_id)))
        group.export(target)
        write_card(target, role, config, rollout_id + 1, metrics)
    link, name = folder / "latest", f"rollout_{rollout_id}"
    if (folder / name).exists():
        if link.is_symlink():
            link.unlink()
        link.symlink_to(name)
