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
from fsdp_backend.training.targets import with_targets


class Session:
    """An actor and a critic on the same ranks."""

    def __init__(self, config: TrainConfig, mesh: DeviceMesh) -> None:
        self.ppo = config.ppo
        self.actor = Actor(config, mesh)
        self.critic = Critic(config, mesh)

    def iterate(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """Train both roles on one rollout: V_old (and old log-probs) first, then K critic passes and one actor pass."""
        batch = batch.with_columns(
            values=self.critic.values(batch),
            log_probs=self.actor.old_log_probs(batch),
            ref_log_probs=self.actor.ref_log_probs(batch),
        )
        batch = with_targets(batch, self.ppo)
        critic = self.critic.update(batch, rollout_id)
        return {**critic, **self.actor.update(batch)}
