"""The estimate of memory against what real ranks then take."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.estimate import estimate
from fsdp_backend.training.actor import Actor
from fsdp_backend.training.critic import Critic
from tests.memory import allocated_by
from tests.tiny import save_tiny_model
from tests.worlds import run_world

M_MMAP_THRESHOLD = -3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    sizes: dict[str, Any] = {
        "vocab_size": 6000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "head_dim": 64,
    }
    folder = save_tiny_model(tmp_path_factory.mktemp("policy"), max_position_embeddings=1024, **sizes)
    save_tiny_model(folder / "small", vocab_size=6000, max_position_embeddings=1024)
    return str(folder)


def batch(samples: int = 8) -> RolloutBatch:
    filled = RolloutBatch.from_samples([[1] * 256] * samples, [128] * samples, [[1] * 128] * samples, [0.0] * samples)
    column = np.zeros(samples * 128, dtype=np.float32)
    return filled.with_columns(values=column, returns=column, advantages=column)


def train(mesh: DeviceMesh, kind: str, role: RoleConfig, ppo: PPOConfig) -> None:
    config = TrainConfig(role, role, ppo, num_rollout=1)
    if kind == "actor":
        Actor(config, mesh).update(batch(), 0)
    else:
        Critic(config, mesh).update(batch(), 0)


def measured(mesh: DeviceMesh, kind: str, role: RoleConfig, ppo: PPOConfig) -> int:
    """The most a rank allocates from before the model is loaded until an update is done. A small model goes first, for what a
    process allocates once."""
    # glibc keeps freed memory of odd sizes; from this size on it is to give it back at once, as an accelerator's allocator can.
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536) == 1
    train(mesh, kind, replace(role, hf_checkpoint=str(Path(role.hf_checkpoint) / "small")), ppo)
    return allocated_by(lambda: train(mesh, kind, role, ppo))


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "actor on one rank": ("actor", 1, {"max_tokens_per_gpu": 1024}),
    "actor on two, one large micro-batch": ("actor", 2, {"max_tokens_per_gpu": 1024}),
    "critic on two, gradients deferred": ("critic", 2, {"max_tokens_per_gpu": 512}),
    "critic on two, recomputed": ("critic", 2, {"max_tokens_per_gpu": 1024, "gradient_checkpointing": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_within_15_percent_of_what_a_run_takes(case: str, checkpoint: str) -> None:
    kind, world, settings = CASES[case]
    role = RoleConfig(hf_checkpoint=checkpoint, use_dynamic_batch_size=True, **settings)
    expected = estimate(kind, role, world, batch())  # type: ignore[arg-type]
    for took in run_world(world, measured, kind, role, PPOConfig()):
        assert abs(expected.most - took) <= 0.15 * took
