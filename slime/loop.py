"""The train loop: generate, value, train critic and actor, hand the weights on."""

from dataclasses import dataclass
from pathlib import Path

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.training.targets import with_advantages, with_returns
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.fsdp_utils.custom_targets import custom_targets
from slime.backends.fsdp_utils.group import Pending
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.backends.fsdp_utils.worker import Trained
from slime.checkpoint import Unit, how_to_go_on
from slime.generation import Generation
from slime.model_card import write_card
from slime.observability.run_log import RunLog
from slime.rollout.manager import RolloutManager
from slime.saver import Saver
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
    weights = WeightSync(cluster.actor, cluster.engines, config, log.run_dir / "weight_transfer")
    cluster.resources.callback(weights.close)
    generation = Generation(config, rollouts, cluster, weights, log)
    cluster.resources.callback(generation.close)
    saver = Saver(config, generation, cluster, weights)
    first = 0 if unit is None else saver.resume(unit)
    unfinished: Unfinished | None = None
    try:
        for rollout_id in range(first, config.run.num_rollout):
            metrics = evaluate(config, generation, rollout_id)
            batch, rollout_metrics = generation.rollout(rollout_id)
            batch = with_old_log_probs(batch, cluster, config, log, rollout_id)
            previous, unfinished = unfinished, None
            finish(previous, log)
            saver.commit_if_whole()
            batch = with_old_values(batch, cluster, config, log)
            critic_update = None if cluster.critic is None else cluster.critic.start_update(batch, rollout_id)
            if config.trains_actor(rollout_id):
                batch = with_actor_columns(batch, critic_update, cluster, config, log)
                metrics |= update_actor(batch, cluster, log, rollout_id)
                if cluster.engines is not None:
                    generation.settle()
                    with log.phase("update_weights"):
                        weights.update()
            metrics |= rollout_metrics
            last, stopping = rollout_id + 1 == config.run.num_rollout, stop.requested
            due = is_due(config.run.save_interval, rollout_id + 1) or last or stopping
            if due:
                export(config, cluster, log, rollout_id, metrics, last)
            unfinished = Unfinished(rollout_id, metrics | log.take_times(), len(batch.tokens), critic_update)
            if due and config.run.save is not None:
                with log.phase("save"):
                    saver.begin(rollout_id, metrics)
                if last or stopping or not config.run.async_save:
                    previous, unfinished = unfinished, None
                    finish(previous, log)
                    with log.phase("save"):
                        saver.commit()
            if config.cluster.offload_train:
                leave_accelerator(cluster)
            if stopping and not last:
                raise KeyboardInterrupt(f"after rollout {rollout_id + 1}; {how_to_go_on(config)}")
    finally:  # a rollout is recorded even if the one after it fails
        finish(unfinished, log)
        saver.commit_if_whole()
    final = evaluate(config, generation, config.run.num_rollout, last=True)
    if final:
        log.write_final_evaluation(final, config.run.num_rollout)


def with_old_log_probs(batch: RolloutBatch, cluster: Cluster, config: RunConfig, log: RunLog, rollout_id: int) -> RolloutBatch:
    """Add the actor's log-probs from before its update, and the reference model's, where they are needed."""
    if cluster.actor is None or not config.ppo.generates or not config.ppo.needs_old_policy(rollout_id):
        return batch
    with log.phase("log_probs"):
        log_probs, ref_log_probs = cluster.actor.log_probs(batch, rollout_id)
    return batch.with_columns(log_probs=log_probs, ref_log_probs=ref_log_probs)


def with_old_values(batch: RolloutBatch, cluster: Cluster, config: RunConfig, log: RunLog) -> RolloutBatch:
    """Add V_old and the critic's targets, where there is a critic; a custom function's targets are those of both roles."""
    if cluster.critic is not None:
        with log.phase("values"):
            batch = batch.with_columns(values=cluster.critic.values(batch))
    custom = custom_targets(config)
    if custom is not None:
        return custom(batch)
    return batch if cluster.critic is None else with_returns(batch, config.ppo)


def with_actor_columns(
    batch: RolloutBatch, critic_update: Pending[Trained] | None, cluster: Cluster, config: RunConfig, log: RunLog
) -> RolloutBatch:
    """Add the advantages, of V_old or of the values after the critic's update."""
    if config.ppo.advantage_values == "after-update" and critic_update is not None and cluster.critic is not None:
        with log.phase("critic_wait"):
            critic_update.result()
        with log.phase("values"):
            batch = batch.with_columns(values=cluster.critic.values(batch))
    has_them = not config.ppo.generates or config.ppo.custom_advantage_function_path is not None
    return batch if has_them else with_advantages(batch, config.ppo)


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


def evaluate(config: RunConfig, generation: Generation, rollout_id: int, last: bool = False) -> dict[str, float]:
    """Metrics of the policy after `rollout_id` rollouts of training, if an evaluation is due then; else none."""
    skipped = rollout_id == 0 and config.eval.skip_eval_before_train
    if config.eval.eval_interval is None or skipped or not (last or is_due(config.eval.eval_interval, rollout_id)):
        return {}
    return generation.evaluation(rollout_id)


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


def export(config: RunConfig, cluster: Cluster, log: RunLog, rollout_id: int, metrics: dict[str, float], last: bool) -> None:
    """Write both roles as Hugging Face folders, where --save-hf and --critic-save-hf say or under checkpoints/rollout_<id> of
    the run, and point checkpoints/latest at the latter once all are whole. Before the end, --save makes the latter needless:
    `slime export` makes them of training state."""
    patterns = {"actor": config.run.save_hf, "critic": config.run.critic_save_hf}
    folder, name = log.run_dir / "checkpoints", f"rollout_{rollout_id}"
    with log.phase("save"):
        for role, group in cluster.roles().items():
            if patterns[role] or last or config.run.save is None:
                target = Path((patterns[role] or f"{folder}/{name}/{role}").replace("{rollout_id}", str(rollout_id)))
                group.export(target)
                write_card(target, role, config, rollout_id + 1, metrics)
        link = folder / "latest"
        if (folder / name).exists():
            if link.is_symlink():
                link.unlink()
            link.symlink_to(name)
