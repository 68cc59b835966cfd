"""The K passes of the critic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.plan import plan_pass
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


def report(mesh: DeviceMesh, settings: TrainConfig) -> tuple[dict[str, float], list[float], float]:
    """The metrics of an update; explained variance before and after each pass measured over again by hand, on the samples that
    the next pass begins with; and the mean of the last values there."""
    critic = Critic(settings, mesh)
    batch = random_batch(8, masked=True)
    batch = with_targets(batch.with_columns(values=critic.values(batch)), settings.ppo)
    explained, mean = [0.0], 0.0
    run_pass = critic.learner.run_pass

    def measured(k: int) -> None:
        nonlocal mean
        first = plan_pass(batch, settings.critic, 1, np.random.default_rng([settings.seed, 0, k]))[0].samples
        spans = [range(batch.response_offsets[i], batch.response_offsets[i + 1]) for i in first]
        tokens = [t for span in spans for t in span if batch.loss_mask[t]]
        values, returns = critic.values(batch)[tokens], batch.column("returns")[tokens]
        explained.append(1 - np.var(returns - values) / np.var(returns))
        mean = float(values.mean())

    def and_measure(*args: Any) -> Any:
        result = run_pass(*args)
        measured(len(explained))
        return result

    critic.learner.run_pass = and_measure  # type: ignore[method-assign, assignment]
    return critic.update(batch, rollout_id=0), explained, mean


@pytest.mark.parametrize("global_batch_size", [4, None], ids=["two steps a pass", "one step a pass"])
def test_every_pass_reports_what_it_achieved_where_the_next_begins(checkpoint: Path, global_batch_size: int | None) -> None:
    settings = config(checkpoint, k=3)
    settings = replace(settings, critic=replace(settings.critic, global_batch_size=global_batch_size))
    for metrics, explained, mean in run_world(2, report, settings):
        assert metrics["critic-num_steps"] == (3 if global_batch_size is None else 6)
        assert metrics["critic-skipped_steps"] == 0
        for k in (1, 2, 3):
            assert np.isclose(metrics[f"critic-pass_{k}/explained_variance_before"], explained[k - 1], atol=1e-4)
            assert np.isclose(metrics[f"critic-pass_{k}/explained_variance_after"], explained[k], atol=1e-4)
        assert len({round(value, 4) for value in explained}) == 4
        assert np.isclose(metrics["critic-pass_3/values_mean"], mean, atol=1e-6)
        assert "critic-pass_4/value_loss" not in metrics


def forwards(mesh: DeviceMesh, settings: TrainConfig) -> int:
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    batch = with_targets(batch.with_columns(values=critic.values(batch)), settings.ppo)
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1

    critic.model.register_forward_hook(note)
    critic.update(batch, 0)
    return count


def test_one_more_pass_costs_no_forward_besides_its_own(checkpoint: Path) -> None:
    settings = replace(config(checkpoint, k=1), critic=RoleConfig(hf_checkpoint=str(checkpoint), micro_batch_size=8))
    counts = [run_world(1, forwards, replace(settings, ppo=PPOConfig(critic_update_steps=k)))[0] for k in (1, 2, 3)]
    assert counts == [2, 3, 4]


def orders(mesh: DeviceMesh, settings: TrainConfig) -> list[list[tuple[int, ...]]]:
    seen: list[list[tuple[int, ...]]] = []
    critic = Critic(settings, mesh)
    run_step = critic.learner._step

    def spy(batch, step, *rest):  # type: ignore[no-untyped-def]
        seen[-1].append(step.samples)
        return run_step(batch, step, *rest)

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
