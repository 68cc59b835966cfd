"""What the step loop promises besides the numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from fsdp_backend import device
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.critic import Critic
from fsdp_backend.training.targets import with_returns
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def config(folder: Path, **role: Any) -> TrainConfig:
    settings = RoleConfig(hf_checkpoint=str(folder), lr=1e-3, global_batch_size=4, **role)
    return TrainConfig(settings, settings, PPOConfig(use_kl_loss=True, kl_loss_coef=0.1), num_rollout=2)


def trained(mesh: DeviceMesh, settings: TrainConfig, naps: bool) -> list[dict[str, Tensor]]:
    session = Session(settings, mesh)
    assert session.critic is not None
    for rollout_id in range(2):
        session.iterate(random_batch(8, rollout_id), rollout_id)
        for learner in (session.actor.learner, session.critic.learner) if naps else ():
            learner.sleep()
            learner.sleep()
            learner.wake()
            learner.wake()
    return [dict(full_weights(session.actor.model)), dict(full_weights(session.critic.model))]


def test_sleep_between_rollouts_changes_nothing(checkpoint: Path) -> None:
    awake, rested = (run_world(2, trained, config(checkpoint), naps)[0] for naps in (False, True))
    for want, got in zip(awake, rested, strict=True):
        for name, tensor in want.items():
            assert torch.equal(got[name], tensor), name


@pytest.mark.gpu
@pytest.mark.skipif(device.accelerator_count() == 0, reason="no accelerator here")
def test_sleep_leaves_the_accelerator_nearly_empty(checkpoint: Path) -> None:
    (left,) = run_world(1, memory_asleep, config(checkpoint))
    assert left < 2**20


def memory_asleep(mesh: DeviceMesh, settings: TrainConfig) -> int:
    session = Session(settings, mesh)
    assert session.critic is not None
    session.iterate(random_batch(8), 0)
    for learner in (session.actor.learner, session.critic.learner):
        learner.sleep()
    return torch.accelerator.memory_allocated()


def step_counts(mesh: DeviceMesh, settings: TrainConfig) -> tuple[int, int, list[bool]]:
    """A critic pass in which the first of two steps meets a return that is not finite."""
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    steps = critic.learner.plan(batch, np.random.default_rng([settings.seed, 0, 0]))
    returns = batch.column("returns").copy()
    returns[batch.response_offsets[steps[0].samples[0]]] = np.inf
    metrics = critic.update(batch.with_columns(returns=returns), 0)
    finite = [bool(torch.isfinite(tensor).all()) for _, tensor in full_weights(critic.model)]
    return int(metrics["critic-num_steps"]), int(metrics["critic-skipped_steps"]), finite


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(checkpoint: Path) -> None:
    for taken, skipped, finite in run_world(2, step_counts, config(checkpoint)):
        assert (taken, skipped) == (1, 1)
        assert all(finite)


def skipped_in_a_row(mesh: DeviceMesh, settings: TrainConfig) -> tuple[int, str]:
    """Updates of two steps each: one of them fine, one and then more poisoned. How many went through, and the error."""
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    poisoned = batch.with_columns(returns=np.full_like(batch.column("returns"), np.inf))
    for number, each in enumerate((poisoned, batch, poisoned, poisoned)):
        try:
            critic.update(each, number)
        except ValueError as error:
            return number, str(error)
    return 4, ""


def test_too_many_skipped_steps_in_a_row_end_the_run_with_what_was_seen(checkpoint: Path) -> None:
    for number, error in run_world(2, skipped_in_a_row, config(checkpoint, max_skipped_steps=3)):
        assert number == 3
        assert error.startswith(
            "4 optimizer steps of the critic in a row met a gradient that is not finite, more than max_skipped"
        )
        assert "gradient norm nan" in error or "gradient norm inf" in error
        assert "value_loss inf" in error


def unfinished_gradients(mesh: DeviceMesh, settings: TrainConfig) -> int:
    """How many reductions over ranks a pass of several micro-batches a step started."""
    critic = Critic(settings, mesh)
    batch = random_batch(8)
    batch = with_returns(batch.with_columns(values=critic.values(batch)), settings.ppo)
    reductions = 0
    reduce_scatter = DefaultReduceScatter.__call__

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reductions
        reductions += 1
        return reduce_scatter(*args, **kwargs)

    DefaultReduceScatter.__call__ = counted  # type: ignore[method-assign]
    critic.update(batch, 0)
    return reductions


def test_deferred_reduction_happens_once_a_step_and_immediate_once_a_micro_batch(checkpoint: Path) -> None:
    deferred, immediate = (
        run_world(2, unfinished_gradients, config(checkpoint, fsdp_defer_grad_reduce=defer))[0] for defer in (True, False)
    )
    # Two steps of two micro-batches each on every rank; the groups are two blocks, embedding, head and the rest.
    assert deferred == 2 * 5
    assert immediate == 2 * deferred


def test_a_rank_count_that_hsdp_cannot_halve_is_refused_before_loading(checkpoint: Path) -> None:
    settings = config(checkpoint)
    settings = replace(settings, critic=replace(settings.critic, dp_replicate_size=2))
    with pytest.raises(AssertionError, match="dp_replicate_size 2 does not divide the 1 ranks"):
        run_world(1, step_counts, settings)
