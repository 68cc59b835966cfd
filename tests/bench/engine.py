"""Our side: a session over the setting's model, and its parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.distributed.world import Rendezvous, join, leave
from fsdp_backend.session import Session
from fsdp_backend.training.critic import Critic
from fsdp_backend.training.targets import with_advantages, with_returns
from tests.bench.setting import Setting, make_batch

# The objective that TRL's trainer optimises: advantages are whitened over the batch.
OBJECTIVE = PPOConfig(lambd=0.95, normalize_advantages=True)


@contextmanager
def alone() -> Iterator[DeviceMesh]:
    """A mesh of this process; the process group is closed afterwards unless it was open before."""
    ours = not dist.is_initialized()
    try:
        yield join(Rendezvous())
    finally:
        if ours:
            leave()


def open_session(setting: Setting, mesh: DeviceMesh, /, ppo: PPOConfig = OBJECTIVE, **role: Any) -> Session:
    """Both roles on the mesh, in float32 unless `role` says otherwise, past their first optimizer steps."""
    wanted: dict[str, Any] = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": setting.tokens_per_micro_batch, **role}
    config = RoleConfig(hf_checkpoint=setting.checkpoint, **wanted)
    session = Session(TrainConfig(config, config, ppo, num_rollout=1000), mesh)
    session.iterate(make_batch(setting, samples=2), 0)
    return session


def with_columns(session: Session, batch: RolloutBatch) -> RolloutBatch:
    """The batch as the updates want it."""
    batch = batch.with_columns(
        values=critic_of(session).values(batch),
        log_probs=session.actor.old_log_probs(batch, 0),
        ref_log_probs=session.actor.ref_log_probs(batch, 0),
    )
    return with_advantages(with_returns(batch, session.ppo), session.ppo)


def critic_of(session: Session) -> Critic:
    """The critic, which every session of the benchmarks has."""
    assert session.critic is not None
    return session.critic


def set_passes(session: Session, k: int) -> None:
    """Let the critic make k passes from now on."""
    critic_of(session).ppo = replace(session.ppo, critic_update_steps=k)
