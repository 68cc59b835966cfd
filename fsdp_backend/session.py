"""Both roles in one process group, and one PPO iteration: the engine without Ray, for torchrun, tests and notebooks.

mesh = join(Rendezvous(rank, world_size, local_rank, address, port))
session = Session(config, mesh)
metrics = session.iterate(batch, rollout_id=0)
"""

from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import TrainConfig
from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic
from fsdp_backend.training.targets import with_advantages, with_returns


class Session:
    """An actor, and a critic where the objective has one, on the same ranks."""

    def __init__(self, config: TrainConfig, mesh: DeviceMesh) -> None:
        """Raises ValueError for a plug-in that the engine alone can't call, or a checkpoint that can't be trained."""
        if config.ppo.custom_advantage_function_path is not None:
            raise ValueError("custom_advantage_function_path is called by slime train: the engine alone has no args to give it")
        self.ppo = config.ppo
        self.actor = Actor(config, mesh)
        self.critic = Critic(config, mesh) if config.ppo.uses_critic else None

    def iterate(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """Train both roles on one rollout: V_old (and old log-probs) first, then the critic's passes and the actor's."""
        ppo, metrics = self.ppo, {}
        batch = batch.with_columns(
            log_probs=self.actor.old_log_probs(batch, rollout_id), ref_log_probs=self.actor.ref_log_probs(batch, rollout_id)
        )
        if self.critic is not None:
            batch = with_returns(batch.with_columns(values=self.critic.values(batch)), ppo)
            metrics = self.critic.update(batch, rollout_id)
            if ppo.advantage_values == "after-update" and ppo.trains_actor(rollout_id):
                batch = batch.with_columns(values=self.critic.values(batch))
        if ppo.trains_actor(rollout_id):
            metrics |= self.actor.update(with_advantages(batch, ppo), rollout_id)
        return metrics
