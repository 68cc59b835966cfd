"""One training process: a rank of the actor or of the critic. A plain class; Ray wraps it, the local launcher calls it."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fsdp_backend import device
from fsdp_backend.batch.columns import Floats, RolloutBatch
from fsdp_backend.distributed.world import Rendezvous, join, leave
from fsdp_backend.state.checkpoint import load_checkpoint, save_checkpoint, start_saving
from fsdp_backend.state.hf_export import export_hf
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.custom_loss import custom_loss
from slime.backends.fsdp_utils.plugins import custom_correction
from slime.backends.fsdp_utils.weight_sender import Carrier, carrier, send_weights

RoleName = Literal["actor", "critic"]


@dataclass(frozen=True)
class Trained:
    """What an update leaves."""

    metrics: dict[str, float]
    """Under their logged names."""
    started: float
    """Seconds since the epoch."""
    ended: float


class TrainWorker:
    """Verbs run on all ranks of a role together; each returns the same on every rank."""

    def __init__(self, role: RoleName, config: RunConfig, meeting: Rendezvous) -> None:
        device.share_cpu(meeting.world_size)
        mesh = join(meeting)
        self.config = config
        train = config.train_config()
        self.rank = meeting.rank
        torch.manual_seed(train.seed + self.rank)
        self.source = Path((train.actor if role == "actor" else train.critic).hf_checkpoint)
        self.role: Actor | Critic
        if role == "actor":
            self.role = Actor(train, mesh, custom_correction(config), custom_loss(config))
        else:
            self.role = Critic(train, mesh)
        self.carrier: Carrier | None = None
        self.saving: Future[None] | None = None
        if config.run.async_save:
            self.saver, self.saver_group = ThreadPoolExecutor(1, "saver"), device.host_group()

    def log_probs(self, batch: RolloutBatch, rollout_id: int) -> tuple[Floats | None, Floats | None]:
        """Of the actor before its update, and of the reference model; None for those that nothing needs."""
        assert isinstance(self.role, Actor)
        self.role.learner.wake()
        return self.role.old_log_probs(batch, rollout_id), self.role.ref_log_probs(batch, rollout_id)

    def values(self, batch: RolloutBatch) -> Floats:
        """Of the critic as it is now."""
        assert isinstance(self.role, Critic)
        self.role.learner.wake()
        return self.role.values(batch)

    def update(self, batch: RolloutBatch, rollout_id: int) -> Trained:
        """Train on one rollout."""
        started = time.time()
        if self.saving is not None and self.saving.done():
            self.finish_save()
        self.role.learner.wake()
        metrics = self.role.update(batch, rollout_id)
        return Trained({f"train/{name}": value for name, value in metrics.items()}, started, time.time())

    def export(self, folder: Path) -> None:
        """Write the role's model as a Hugging Face folder."""
        self.role.learner.wake()
        try:
            export_hf(self.role.model, folder, self.source)
        except OSError as error:
            raise ValueError(f"{folder} can't be written: {error}") from error

    def send_weights(self, urls: list[str], version: int) -> dict[str, str]:
        """Bring the model to these engines as this version of it; returns what went wrong, by engine."""
        self.role.learner.wake()
        weights, failures = full_weights(self.role.model), dict[str, str]()
        if self.rank == 0:
            engine, minutes = self.config.engine, self.config.cluster.distributed_timeout_minutes
            if self.carrier is None:
                self.carrier = carrier(self.config.weight_transport, self.config.engine_gpus, minutes)
            buffer, bf16 = engine.update_weight_buffer_size, self.config.actor.bf16
            failures = send_weights(self.carrier, weights, urls, version, buffer, bf16)
        for _ in weights:  # all ranks take part in gathering what is left
            pass
        return failures

    def save(self, folder: Path, rollout_id: int) -> None:
        """Write all that the role needs to go on from after this rollout; with --async-save, only begin to."""
        learner, run = self.role.learner, self.config.run
        self.finish_save()
        learner.wake()
        optimizer = None if run.no_save_optim else learner.optimizer
        state = (folder, self.role.model, optimizer, learner.mesh, learner.progress() | {"rollout_id": rollout_id}, self.source)
        try:
            if run.async_save:
                self.saving = start_saving(*state, self.saver, self.saver_group)
            else:
                save_checkpoint(*state)
        except OSError as error:  # a full disk is not ours to mend: one line
            raise ValueError(str(error)) from error

    def finish_save(self) -> None:
        """Wait for a save that was begun. Raises ValueError if it has failed."""
        saving, self.saving = self.saving, None
        if saving is not None:
            try:
                saving.result()
            except OSError as error:
                raise ValueError(str(error)) from error

    def load(self, folder: Path, rollout_id: int) -> None:
        """Go on from what `save` wrote after this rollout."""
        learner = self.role.learner
        learner.wake()
        optimizer = None if self.config.run.no_load_optim else learner.optimizer
        progress = load_checkpoint(folder, self.role.model, optimizer, learner.mesh)
        if progress["rollout_id"] != rollout_id:
            raise ValueError(f"checkpoint {folder} is of rollout {progress['rollout_id']}, not of {rollout_id} as its unit")
        learner.set_progress(progress)

    def sleep(self) -> None:
        """Leave the accelerator to others until the next verb."""
        self.role.learner.sleep()

    def close(self) -> None:
        """Leave the process groups."""
        if self.carrier is not None:
            self.carrier.close()
        leave()
