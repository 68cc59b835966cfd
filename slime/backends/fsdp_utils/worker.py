"""One training process: a rank of the actor or of the critic. A plain class; Ray wraps it, the local launcher calls it."""

import time
from pathlib import Path
from typing import Literal

from fsdp_backend import device
from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.config import TrainConfig
from fsdp_backend.distributed.world import Rendezvous, join, leave
from fsdp_backend.state.hf_export import export_hf
from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic

RoleName = Literal["actor", "critic"]


class TrainWorker:
    """Verbs run on all ranks of a role together; each returns the same on every rank. All but `sleep` wake the role first."""

    def __init__(self, role: RoleName, config: TrainConfig, meeting: Rendezvous) -> None:
        device.share_cpu(meeting.world_size)
        mesh = join(meeting)
        self.rank = meeting.rank
        self.source = Path((config.actor if role == "actor" else config.critic).hf_checkpoint)
        self.role: Actor | Critic = Actor(config, mesh) if role == "actor" else Critic(config, mesh)

    def log_probs(self, batch: RolloutBatch) -> tuple[Floats | None, Floats | None]:
        """Of the actor as it is now if they are needed before its update, and of the reference model if there is one."""
        assert isinstance(self.role, Actor)
        self.role.learner.wake()
        return self.role.old_log_probs(batch), self.role.ref_log_probs(batch)

    def values(self, batch: RolloutBatch) -> Floats:
        """Of the critic as it is now."""
        assert isinstance(self.role, Critic)
        self.role.learner.wake()
        return self.role.values(batch)

    def update(self, batch: RolloutBatch, rollout_id: int) -> dict[str, float]:
        """Train on one rollout; returns metrics under their logged names, and the seconds it took."""
        start = time.perf_counter()
        self.role.learner.wake()
        if isinstance(self.role, Actor):
            metrics, phase = self.role.update(batch), "actor_update"
        else:
            metrics, phase = self.role.update(batch, rollout_id), "critic_update"
        named = {f"train/{name}": value for name, value in metrics.items()}
        return {**named, f"time/{phase}": time.perf_counter() - start}

    def export(self, folder: Path) -> None:
        """Write the role's model as a Hugging Face folder."""
        self.role.learner.wake()
        export_hf(self.role.model, folder, self.source)

    def sleep(self) -> None:
        """Leave the accelerator to others until the next verb."""
        self.role.learner.sleep()

    def close(self) -> None:
        """Leave the process group."""
        leave()
