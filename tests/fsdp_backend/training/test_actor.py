"""The actor's update."""

from pathlib import Path

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.training.actor import Actor
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def config(folder: Path, **ppo: object) -> TrainConfig:
    role = RoleConfig(hf_checkpoint=str(folder), lr=1e-3, use_dynamic_batch_size=True, max_tokens_per_gpu=40)
    return TrainConfig(role, role, PPOConfig(**ppo), num_rollout=4, rollout_temperature=0.7)  # type: ignore[arg-type]


def first_update(mesh: DeviceMesh, settings: TrainConfig) -> dict[str, float]:
    actor = Actor(settings, mesh)
    batch = random_batch(8, masked=True)
    advantages = np.random.default_rng(0).normal(size=int(batch.response_offsets[-1])).astype(np.float32)
    batch = batch.with_columns(
        log_probs=actor.log_probs(batch), ref_log_probs=actor.ref_log_probs(batch, 0), advantages=advantages
    )
    metrics = actor.update(batch, 0)
    per_sample = [
        (-advantages * batch.loss_mask)[start:stop].sum() / max(batch.loss_mask[start:stop].sum(), 1)
        for start, stop in zip(batch.response_offsets, batch.response_offsets[1:], strict=False)
    ]
    return metrics | {"on_policy_loss": float(np.mean(per_sample))}


def test_on_policy_the_ratio_is_exactly_one_packing_included(checkpoint: Path) -> None:
    metrics = run_world(2, first_update, config(checkpoint))[0]
    assert metrics["ppo_kl"] == 0.0
    assert metrics["pg_clipfrac"] == 0.0
    assert np.isclose(metrics["pg_loss"], metrics["on_policy_loss"], atol=1e-6)


def engine_difference(mesh: DeviceMesh, settings: TrainConfig) -> tuple[float, float]:
    """As the update reports it, and by hand."""
    actor = Actor(settings, mesh)
    batch = random_batch(8, masked=True)
    noise = np.random.default_rng(0).normal(size=int(batch.response_offsets[-1])).astype(np.float32)
    batch = batch.with_columns(rollout_log_probs=actor.log_probs(batch) + noise, advantages=noise)
    by_sample = [
        (np.abs(noise) * batch.loss_mask)[start:stop].sum() / max(batch.loss_mask[start:stop].sum(), 1)
        for start, stop in zip(batch.response_offsets, batch.response_offsets[1:], strict=False)
    ]
    return actor.update(batch, 0)["train_rollout_logprob_abs_diff"], float(np.mean(by_sample))


def test_the_rollout_engines_log_probs_are_compared_with_those_from_before_the_update(checkpoint: Path) -> None:
    for reported, by_hand in run_world(2, engine_difference, config(checkpoint)):
        assert np.isclose(reported, by_hand, atol=1e-5)


def test_the_kl_to_a_reference_equal_to_the_policy_is_zero(checkpoint: Path) -> None:
    metrics = run_world(1, first_update, config(checkpoint, use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k3"))[0]
    assert metrics["kl_loss"] == 0.0


def test_a_reference_of_its_own_is_loaded_from_ref_load(checkpoint: Path, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", seed=5)
    metrics = run_world(1, first_update, config(checkpoint, use_kl_loss=True, kl_loss_type="k3", ref_load=str(other)))[0]
    assert metrics["kl_loss"] > 0.1


def supervised(mesh: DeviceMesh, settings: TrainConfig) -> list[float]:
    actor = Actor(settings, mesh)
    batch = random_batch(8)
    return [actor.update(batch, 0)["sft_loss"] for _ in range(4)]


def test_supervised_training_lowers_the_loss_and_starts_at_the_negative_log_prob(checkpoint: Path) -> None:
    losses = run_world(2, supervised, config(checkpoint, loss_type="sft_loss"))[0]
    assert losses[0] > losses[1] > losses[2] > losses[3]
