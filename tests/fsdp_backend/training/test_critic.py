"""The K passes of the critic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.plan import hold_out, plan_pass
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.clock import learning_rate
from fsdp_backend.training.critic import Critic
from fsdp_backend.training.learner import PassReport
from fsdp_backend.training.targets import with_returns
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

NUM_ROLLOUT = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def config(folder: Path, k: int, warmup: int = 0) -> TrainConfig:
    role = RoleConfig(hf_checkpoint=str(folder), lr=1e-3, lr_decay_style="linear", lr_warmup_iters=warmup, global_batch_size=4)
    return TrainConfig(role, role, PPOConfig(critic_update_steps=k), num_rollout=NUM_ROLLOUT)


STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")


def rates(mesh: DeviceMesh, settings: TrainConfig) -> list[tuple[float | None, float, set[float]]]:
    session = Session(settings, mesh)
    assert session.critic is not None
    size = int(random_batch(8, 0).response_offsets[-1])
    nothing = np.zeros(size, dtype=np.float32)
    for learner in (session.actor.learner, session.critic.learner):
        still = PassReport({"loss": 0.0}, 0.0, 1, 0, nothing, nothing == 0)
        # Nothing is trained: the clock is what matters.
        learner.run_pass = lambda *_, still=still: still  # type: ignore[method-assign]
        learner.compute_column = lambda *_: nothing  # type: ignore[method-assign]
    table = []
    for rollout_id in range(settings.num_rollout):
        metrics = session.iterate(random_batch(8, 0), rollout_id)
        groups = {group["lr"] for group in session.critic.learner.optimizer.param_groups}
        table.append((metrics.get("lr"), metrics["critic-lr"], groups))
    return table


@pytest.mark.parametrize("alone", [0, 10])
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_learning_rates_follow_the_rollouts_that_a_role_trains_on_whatever_k(
    checkpoint: Path, k: int, warmup: int, alone: int
) -> None:
    linear = {
        0: [1 - r / NUM_ROLLOUT for r in range(NUM_ROLLOUT)],
        3: [0, 1 / 3, 2 / 3, 1, 2 / 3, 1 / 3],
    }[warmup]
    for style in STYLES:
        role = RoleConfig(
            hf_checkpoint=str(checkpoint),
            lr=1e-3,
            lr_decay_style=style,  # type: ignore[arg-type]
            lr_warmup_iters=warmup,
            global_batch_size=4,
        )
        ppo = PPOConfig(critic_update_steps=k, num_critic_only_steps=alone)
        settings = TrainConfig(role, role, ppo, num_rollout=NUM_ROLLOUT + alone)
        actors = [learning_rate(role, r, NUM_ROLLOUT) for r in range(NUM_ROLLOUT)]
        critics = [learning_rate(role, r, NUM_ROLLOUT + alone) for r in range(NUM_ROLLOUT + alone)]
        if style == "linear":
            np.testing.assert_allclose(actors, [1e-3 * rate for rate in linear], atol=1e-12)
        (table,) = run_world(1, rates, settings)
        assert [actor for actor, _, _ in table] == [*[None] * alone, *actors]
        assert [critic for _, critic, _ in table] == critics
        assert all(groups == {critic} for _, critic, groups in table)


def report(mesh: DeviceMesh, settings: TrainConfig) -> tuple[dict[str, float], list[float], float]:
    """The metrics of an update; explained variance before and after each pass measured over again by hand, on the samples that
    the next pass begins with; and the mean of the last values there."""
    critic = Critic(settings, mesh)
    batch = random_batch(8, masked=True)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
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
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
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
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
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


def updated(mesh: DeviceMesh, settings: TrainConfig, by_hand: bool) -> dict[str, Tensor]:
    """The critic after one rollout: by its own update, or by separate calls for each pass."""
    critic = Critic(settings, mesh)
    batch = random_batch(8, masked=True)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    if not by_hand:
        critic.update(batch, rollout_id=3)
    else:
        critic.learner.advance_clock()
        for k in range(settings.ppo.critic_update_steps):
            if settings.ppo.critic_targets == "refreshed":
                batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
            order = np.random.default_rng([settings.seed, 3, k])
            critic.learner.run_pass(batch, critic._value_loss, False, order)
    return {name: tensor.clone() for name, tensor in full_weights(critic.model)}


@pytest.mark.parametrize("targets", ["frozen", "refreshed"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_passes_are_k_separate_calls_bit_for_bit(checkpoint: Path, k: int, targets: Any) -> None:
    settings = replace(config(checkpoint, k), ppo=PPOConfig(critic_update_steps=k, critic_targets=targets, lambd=0.9))
    (update,), (separate,) = (run_world(1, updated, settings, by_hand) for by_hand in (False, True))
    assert update.keys() == separate.keys()
    assert all(torch.equal(update[name], separate[name]) for name in update)


def anchors(mesh: DeviceMesh, settings: TrainConfig) -> list[tuple[list[float], list[float]]]:
    """The values and returns that each pass trained against."""
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    run_pass, seen = critic.learner.run_pass, []

    def spy(of_pass: Any, *rest: Any) -> Any:
        seen.append((of_pass.column("values").tolist(), of_pass.column("returns").tolist()))
        return run_pass(of_pass, *rest)

    critic.learner.run_pass = spy  # type: ignore[method-assign, assignment]
    critic.update(batch, 0)
    return seen


def test_frozen_targets_anchor_all_passes_and_refreshed_ones_move(checkpoint: Path) -> None:
    frozen, refreshed = (
        run_world(1, anchors, replace(config(checkpoint, 3), ppo=PPOConfig(**ppo)))[0]
        for ppo in ({"critic_update_steps": 3}, {"critic_update_steps": 3, "critic_targets": "refreshed", "lambd": 0.5})
    )
    assert frozen[0] == frozen[1] == frozen[2]
    assert len({str(values) for values, _ in refreshed}) == len({str(returns) for _, returns in refreshed}) == 3


def held_out(mesh: DeviceMesh, settings: TrainConfig, bonus: float) -> tuple[dict[str, float], list[int], dict[str, Tensor]]:
    """Metrics, which samples were trained on, and the weights; `bonus` is put on the rewards of the others."""
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    unseen = hold_out(batch, settings.ppo.held_out(8), settings.seed, 0)[1]
    assert unseen is not None
    batch = batch.with_columns(reward=batch.reward + bonus * np.isin(batch.sample_index, unseen.sample_index))
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    run_pass, trained = critic.learner.run_pass, []

    def spy(of_pass: Any, *rest: Any) -> Any:
        trained.extend(of_pass.sample_index.tolist())
        return run_pass(of_pass, *rest)

    critic.learner.run_pass = spy  # type: ignore[method-assign, assignment]
    metrics = critic.update(batch, 0)
    return metrics, trained, {name: tensor.clone() for name, tensor in full_weights(critic.model)}


def test_what_is_held_out_is_measured_and_never_trained_on(checkpoint: Path) -> None:
    ppo = PPOConfig(critic_update_steps=2, critic_holdout_fraction=0.5)
    settings = replace(config(checkpoint, 2), ppo=ppo)
    (plain, trained, weights), (bonus, _, same) = (run_world(2, held_out, settings, bonus)[0] for bonus in (0.0, 5.0))
    assert len(trained) == 8
    assert len(set(trained)) == 4
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    unseen = "holdout_explained_variance"
    assert plain[f"critic-pass_1/{unseen}_after"] == plain[f"critic-pass_2/{unseen}_before"]
    assert plain[f"critic-pass_1/{unseen}_before"] == 0.0
    for name, value in plain.items():
        assert (value != bonus[name]) is (name.endswith(f"{unseen}_after") or name == f"critic-pass_2/{unseen}_before"), name


def test_nothing_is_held_out_by_default(checkpoint: Path) -> None:
    (metrics, _, _) = run_world(1, report, config(checkpoint, 1))[0]
    assert not [name for name in metrics if "holdout" in name]
