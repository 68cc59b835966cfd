"""The train loop: generate, value, train critic and actor, hand the weights on."""

from dataclasses import dataclass
from pathlib import Path

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.training.targets import with_targets
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.fsdp_utils.group import Pending
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.observability.run_log import RunLog
from slime.rollout.manager import RolloutManager


@dataclass
class Unfinished:
    """A rollout whose critic may still be training."""

    rollout_id: int
    metrics: dict[str, float]
    tokens: int
    critic: Pending[dict[str, float]] | None


def train(config: RunConfig, rollouts: RolloutManager, cluster: Cluster, log: RunLog) -> None:
    """Run `num_rollout` rollouts. The critic's K passes run beside the actor's update, the weight update and the next
    generation; the first thing to wait for them is the next rollout's values."""
    weights = WeightSync(cluster.actor, cluster.engine_urls, log.run_dir / "weight_transfer")
    unfinished: Unfinished | None = None
    try:
        for rollout_id in range(config.run.num_rollout):
            metrics = evaluate(config, rollouts, log, rollout_id)
            with log.phase("generate"):
                batch, rollout_metrics = rollouts.generate(rollout_id)
            previous, unfinished = unfinished, None
            finish(previous, log)
            critic_update = None
            if cluster.critic is not None:
                batch = with_old_policy_columns(batch, cluster, config, log)
                critic_update = cluster.critic.start_update(batch, rollout_id)
            with log.phase("actor_update"):
                metrics |= rollout_metrics | cluster.actor.start_update(batch, rollout_id).result()
            if cluster.engine_urls:
                with log.phase("update_weights"):
                    weights.update()
            if is_due(config.run.save_interval, rollout_id + 1) or rollout_id + 1 == config.run.num_rollout:
                with log.phase("save"):
                    save(cluster, log.run_dir / "checkpoints", rollout_id)
            if config.cluster.offload_train:
                leave_accelerator(cluster)
            unfinished = Unfinished(rollout_id, metrics | log.take_times(), len(batch.tokens), critic_update)
    finally:  # a rollout is recorded even if the one after it fails
        finish(unfinished, log)
    final = evaluate(config, rollouts, log, config.run.num_rollout, last=True)
    if final:
        log.write_final_evaluation(final)


def with_old_policy_columns(batch: RolloutBatch, cluster: Cluster, config: RunConfig, log: RunLog) -> RolloutBatch:
    """Add what is fixed before any update: V_old, log-probs where they are needed, and the advantages and returns of them."""
    assert cluster.critic is not None
    with log.phase("values"):
        batch = batch.with_columns(values=cluster.critic.values(batch))
    with log.phase("log_probs"):
        log_probs, ref_log_probs = cluster.actor.log_probs(batch)
    return with_targets(batch.with_columns(log_probs=log_probs, ref_log_probs=ref_log_probs), config.ppo)


def leave_accelerator(cluster: Cluster) -> None:
    """Wait until the actor has left it; the critic leaves when its passes are done."""
    sleeping = cluster.actor.start_sleep()
    if cluster.critic is not None:
        cluster.critic.start_sleep()
    sleeping.result()


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
    if rollout is not None:
        critic_metrics = {} if rollout.critic is None else rollout.critic.result()
        log.write(rollout.rollout_id, rollout.metrics | critic_metrics, rollout.tokens)


def save(cluster: Cluster, folder: Path, rollout_id: int) -> None:
    """Write both roles as Hugging Face folders under `rollout_<id>`, and point `latest` at it once both are whole."""
    name = f"rollout_{rollout_id}"
    cluster.actor.export(folder / name / "actor")
    if cluster.critic is not None:
        cluster.critic.export(folder / name / "critic")
    link = folder / "latest"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(name)
