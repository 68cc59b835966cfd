"""The K passes of the critic."""

from pathlib import Path

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.training.critic import Critic
from fsdp_backend.training.targets import with_targets
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

NUM_ROLLOUT = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def config(folder: Path, k: int, warmup: int = 0) -> TrainConfig:
    role = RoleConfig(hf_checkpoint=str(folder), lr=1e-3, lr_decay_style="linear", lr_warmup_iters=warmup, global_batch_size=4)
    return TrainConfig(role, role, PPOConfig(critic_update_steps=k), num_rollout=NUM_ROLLOUT)


def rates(mesh: DeviceMesh, settings: TrainConfig) -> list[tuple[float, float, set[float]]]:
    session = Session(settings, mesh)
    table = []
    for rollout_id in range(NUM_ROLLOUT):
        metrics = session.iterate(random_batch(8, rollout_id), rollout_id)
        groups = {group["lr"] for group in session.critic.learner.optimizer.param_groups}
        table.append((metrics["lr"], metrics["critic-lr"], groups))
    return table


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_learning_rate_follows_the_rollouts_whatever_k(checkpoint: Path, k: int, warmup: int) -> None:
    want = {
        0: [1e-3 * (1 - r / 6) for r in range(NUM_ROLLOUT)],
        3: [0.0, 1e-3 / 3, 2e-3 / 3, 1e-3, 2e-3 / 3, 1e-3 / 3],
    }[warmup]
    for rate, (actor, critic, groups) in zip(want, run_world(1, rates, config(checkpoint, k, warmup))[0], strict=True):
        assert np.isclose(actor, rate, atol=1e-12)
        assert np.isclose(critic, rate, atol=1e-12)
        assert groups == {critic}


def report(mesh: DeviceMesh, settings: TrainConfig) -> dict[str, float]:
    critic = Critic(settings, mesh)
    batch = random_batch(8, masked=True)
    batch = with_targets(batch.with_columns(values=critic.values(batch)), settings.ppo)
    metrics = critic.update(batch, rollout_id=0)
    after = critic.values(batch)[batch.loss_mask != 0]
    returns = batch.column("returns")[batch.loss_mask != 0]
    return metrics | {"variance": 1 - np.var(returns - after) / np.var(returns), "mean": float(after.mean())}


def test_every_pass_reports_its_own_diagnostics_and_the_next_begins_where_it_ended(checkpoint: Path) -> None:
    metrics = run_world(2, report, config(checkpoint, k=3))[0]
    assert metrics["critic-num_steps"] == 6
    assert metrics["critic-skipped_steps"] == 0
    assert metrics["critic-pass_1/explained_variance_before"] == 0.0
    for k in (1, 2):
        assert metrics[f"critic-pass_{k}/explained_variance_after"] == metrics[f"critic-pass_{k + 1}/explained_variance_before"]
    assert np.isclose(metrics["critic-pass_3/explained_variance_after"], metrics["variance"], atol=1e-5)
    assert np.isclose(metrics["critic-pass_3/values_mean"], metrics["mean"], atol=1e-6)
    assert "critic-pass_4/value_loss" not in metrics


def orders(mesh: DeviceMesh, settings: TrainConfig) -> list[list[tuple[int, ...]]]:
    seen: list[list[tuple[int, ...]]] = []
    critic = Critic(settings, mesh)
    run_step = critic.learner._step

    def spy(batch, step, loss, per_token):  # type: ignore[no-untyped-def]
        seen[-1].append(step.samples)
        return run_step(batch, step, loss, per_token)

    critic.learner._step = spy  # type: ignore[method-assign]
    batch = random_batch(8)
    batch = with_targets(batch.with_columns(values=critic.values(batch)), settings.ppo)
    for rollout_id in (0, 0, 1):
        seen.append([])
        critic.update(batch, rollout_id)
    return seen


def test_each_pass_visits_every_sample_once_in_an_order_of_its_own(checkpoint: Path) -> None:
    first, again, other = run_world(1, orders, config(checkpoint, k=2))[0]
    assert first == again
    assert first != other
    passes = first[:2], first[2:]
    for steps in passes:
        assert sorted(i for step in steps for i in step) == list(range(8))
    assert passes[0] != passes[1]
