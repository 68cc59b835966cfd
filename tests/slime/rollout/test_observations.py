"""Observation tokens, from the sample to the weights after an update: nothing depends on what is written at them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.targets import with_advantages, with_returns
from slime.utils.types import Sample
from tests.slime.rollout.runs import batch_of, default_args
from tests.tiny import VOCABULARY, save_tiny_model
from tests.worlds import run_world

META = {"finish_reason": {"type": "stop"}, "weight_version": "0"}


def tool_samples(removed: bool = False) -> list[Sample]:
    """The model writes, a tool answers, the model writes on; the last one ends with the tool's answer."""
    draw, samples = np.random.default_rng(0), []
    for index in range(6):
        sample = Sample(index=index, tokens=draw.integers(3, VOCABULARY, 4).tolist(), reward=float(draw.normal()))
        for turn, length in enumerate((5, 3, 4) if index < 5 else (5, 3)):
            tokens = draw.integers(3, VOCABULARY, length).tolist()
            if turn == 1:
                sample.append_response_tokens(tokens=tokens, trainable=False)
            else:
                sample.append_response_tokens(tokens=tokens, log_probs=draw.normal(-2, 0.5, length).tolist(), meta_info=META)
        sample.remove_sample = removed and index == 2
        samples.append(sample)
    return samples


def disturbed(batch: RolloutBatch, seed: int | None) -> RolloutBatch:
    """With values and reference log-probs, the same for every seed but at observations, where the seed's own noise is."""
    draw = np.random.default_rng(1)
    columns = {name: draw.normal(size=len(batch.loss_mask)).astype(np.float32) for name in ("values", "ref_log_probs")}
    columns |= {"log_probs": columns["ref_log_probs"] * 0.9, "rollout_log_probs": batch.column("rollout_log_probs")}
    if seed is not None:
        noise = np.random.default_rng(seed).normal(0, 5, len(batch.loss_mask)).astype(np.float32)
        columns = {name: np.where(batch.loss_mask == 0, noise, column) for name, column in columns.items()}
    return batch.with_columns(**columns)


def update_both(mesh: DeviceMesh, settings: TrainConfig, seed: int | None, removed: bool) -> Any:
    batch = disturbed(batch_of(default_args(use_tis=True), tool_samples(removed)), seed)
    session = Session(settings, mesh)
    assert session.critic is not None
    batch = with_advantages(with_returns(batch, settings.ppo), settings.ppo)
    metrics = session.critic.update(batch, 0) | session.actor.update(batch, 0)
    weights = [tensor.numpy() for role in (session.actor, session.critic) for _, tensor in full_weights(role.model)]
    trained = batch.loss_mask != 0
    return metrics, weights, [batch.column("returns")[trained], batch.column("advantages")[trained]]


@pytest.mark.parametrize("removed", [False, True])
def test_what_stands_at_observations_changes_no_target_no_metric_and_no_weight(tmp_path: Path, removed: bool) -> None:
    role = RoleConfig(hf_checkpoint=str(save_tiny_model(tmp_path / "model")), lr=1e-3, global_batch_size=3)
    ppo = PPOConfig(kl_coef=0.1, use_tis=True, gamma=0.9, lambd=0.8, use_kl_loss=True, kl_loss_coef=0.1, entropy_coef=0.01)
    settings = TrainConfig(role, role, ppo, num_rollout=2)
    plain = run_world(1, update_both, settings, None, removed)[0]
    noisy = run_world(1, update_both, settings, 7, removed)[0]
    assert plain[0] == noisy[0]
    for one, other in zip(plain[1] + plain[2], noisy[1] + noisy[2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_batch_has_the_masks_and_zeros_of_the_samples() -> None:
    batch = batch_of(default_args(), tool_samples(removed=True))
    whole, cut = [1] * 5 + [0] * 3 + [1] * 4, [1] * 5 + [0] * 3
    assert batch.loss_mask.tolist() == whole * 2 + [0] * 12 + whole * 2 + cut
    assert not batch.column("rollout_log_probs")[5:8].any()
    assert batch.trainable_lengths.tolist() == [9, 9, 0, 9, 9, 5]
