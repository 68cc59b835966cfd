"""Whole PPO iterations, sharded, against a plain single-process reference: equal parameter by parameter."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.targets import with_advantages
from tests.fsdp_backend.reference import ReferencePPO, Sample, Settings
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

Weights = dict[str, dict[str, Tensor]]
ROLLOUTS = 2
# Adam divides small gradients by their own size, and so magnifies rounding: a larger eps leaves the comparison sharp.
SETTINGS = Settings(
    critic_update_steps=1,
    lr=1e-3,
    critic_lr=3e-3,
    global_batch_size=4,
    critic_global_batch_size=2,
    adam_eps=1e-3,
    weight_decay=0.1,
    clip_grad=100.0,
    seed=11,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"))


def train_config(folder: Path, k: int = 1, s: Settings = SETTINGS, **role_settings: Any) -> TrainConfig:
    actor = RoleConfig(
        hf_checkpoint=str(folder),
        lr=s.lr,
        global_batch_size=s.global_batch_size,
        adam_eps=s.adam_eps,
        weight_decay=s.weight_decay,
        clip_grad=s.clip_grad,
        **role_settings,
    )
    ppo = PPOConfig(
        critic_update_steps=k,
        entropy_coef=s.entropy_coef,
        kl_coef=s.kl_coef,
        use_kl_loss=True,
        kl_loss_coef=s.kl_loss_coef,
        gamma=s.gamma,
        lambd=s.lambd,
        actor_update_steps=s.actor_update_steps,
        critic_targets=s.critic_targets,  # type: ignore[arg-type]
        advantage_values=s.advantage_values,  # type: ignore[arg-type]
        num_critic_only_steps=s.num_critic_only_steps,
        value_clip="none" if math.isinf(s.value_clip) else s.value_clip,
    )
    critic = replace(actor, lr=s.critic_lr, global_batch_size=s.critic_global_batch_size)
    return TrainConfig(actor, critic, ppo, num_rollout=ROLLOUTS, rollout_temperature=s.temperature, seed=s.seed)


def trained(mesh: DeviceMesh, config: TrainConfig, batches: list[RolloutBatch]) -> Weights:
    session = Session(config, mesh)
    for rollout_id, batch in enumerate(batches):
        session.iterate(batch, rollout_id)
    return {role: dict(full_weights(getattr(session, role).model)) for role in ("actor", "critic")}


def batches() -> list[RolloutBatch]:
    return [random_batch(8, seed, masked=True) for seed in range(ROLLOUTS)]


def reference_samples(batch: RolloutBatch) -> list[Sample]:
    samples = []
    for i in range(len(batch)):
        tokens = batch.tokens[batch.token_offsets[i] : batch.token_offsets[i + 1]].tolist()
        mask = batch.loss_mask[batch.response_offsets[i] : batch.response_offsets[i + 1]].astype(int).tolist()
        samples.append(Sample(tokens, len(mask), mask, float(batch.reward[i])))
    return samples


def assert_equal(got: Weights, want: Weights, tolerance: float = 1e-6) -> None:
    """Equal within this part of each parameter's norm."""
    assert got.keys() == want.keys()
    for role in want:
        assert got[role].keys() == want[role].keys()
        for name, tensor in want[role].items():
            difference = float((got[role][name] - tensor).norm() / tensor.norm())
            assert difference <= tolerance, f"{role} {name} differs by {difference}"


# Clipping hides the size of a gradient: without it, a wrong factor in a loss would show.
SEMANTICS: dict[str, dict[str, Any]] = {
    "K = 1": {"critic_update_steps": 1},
    "K = 2": {"critic_update_steps": 2},
    "K = 3": {"critic_update_steps": 3},
    "gradients clipped": {"critic_update_steps": 2, "clip_grad": 0.5},
    "targets refreshed": {"critic_update_steps": 3, "critic_targets": "refreshed"},
    "advantages of the values after": {"critic_update_steps": 2, "advantage_values": "after-update"},
    "refreshed, and after": {"critic_update_steps": 2, "critic_targets": "refreshed", "advantage_values": "after-update"},
    "the critic alone at first": {"critic_update_steps": 2, "num_critic_only_steps": 1},
    "two passes of the actor": {"critic_update_steps": 2, "actor_update_steps": 2},
    "values not clipped": {"critic_update_steps": 2, "value_clip": math.inf},
}


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_iterations_equal_the_single_process_reference_on_one_and_two_ranks(checkpoint: Path, semantics: str) -> None:
    settings = replace(SETTINGS, **SEMANTICS[semantics])
    reference = ReferencePPO(checkpoint, settings)
    for rollout_id, batch in enumerate(batches()):
        reference.iterate(reference_samples(batch), rollout_id)
    want = {role: {n: p.detach() for n, p in getattr(reference, role).named_parameters()} for role in ("actor", "critic")}
    for world in (1, 2):
        for got in run_world(world, trained, train_config(checkpoint, settings.critic_update_steps, settings), batches()):
            assert_equal(got, want)


# World size and what the roles are told besides.
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "four ranks": (4, {}),
    "larger micro-batches": (1, {"micro_batch_size": 4}),
    "packed tightly": (2, {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 24}),
    "packed into one row": (2, {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096}),
    "immediate gradient reduction": (2, {"fsdp_defer_grad_reduce": False}),
    "activation checkpointing": (2, {"gradient_checkpointing": True, "micro_batch_size": 2}),
    "not resharded after forward": (2, {"fsdp_reshard_after_forward": False}),
    "offloaded": (2, {"fsdp_cpu_offload": True}),
    "two copies of two shards": (4, {"dp_replicate_size": 2, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 24}),
    "four copies, immediate reduction": (4, {"dp_replicate_size": 4, "fsdp_defer_grad_reduce": False}),
    "everything at once": (
        4,
        {
            "dp_replicate_size": 2,
            "gradient_checkpointing": True,
            "fsdp_reshard_after_forward": False,
            "use_dynamic_batch_size": True,
            "max_tokens_per_gpu": 40,
        },
    ),
}


@pytest.fixture(scope="module")
def one_rank(checkpoint: Path) -> Weights:
    (weights,) = run_world(1, trained, train_config(checkpoint, k=2), batches())
    return weights  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", WAYS)
def test_parameters_do_not_depend_on_how_the_work_is_cut(way: str, checkpoint: Path, one_rank: Weights) -> None:
    world, role_settings = WAYS[way]
    for got in run_world(world, trained, train_config(checkpoint, 2, **role_settings), batches()):
        assert_equal(got, one_rank)


def test_a_number_of_copies_that_does_not_divide_the_ranks_is_refused(checkpoint: Path) -> None:
    with pytest.raises(AssertionError, match="dp_replicate_size 3 does not divide the 2 ranks"):
        run_world(2, trained, train_config(checkpoint, dp_replicate_size=3), batches())


def test_more_ranks_than_samples_in_a_step_train_the_same(checkpoint: Path) -> None:
    config = train_config(checkpoint)
    small = [random_batch(3, seed) for seed in range(ROLLOUTS)]
    config = replace(
        config, actor=replace(config.actor, global_batch_size=None), critic=replace(config.critic, global_batch_size=1)
    )
    want = run_world(1, trained, config, small)[0]
    assert_equal(run_world(4, trained, config, small)[0], want)


def test_two_runs_with_one_seed_are_equal_bit_for_bit(checkpoint: Path) -> None:
    config = train_config(checkpoint, k=2, micro_batch_size=2)
    first, second = (run_world(2, trained, config, batches())[0] for _ in range(2))
    assert_equal(first, second, tolerance=0.0)


def one_step(mesh: DeviceMesh, config: TrainConfig, with_old_log_probs: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    session = Session(config, mesh)
    batch = batches()[0]
    batch = batch.with_columns(
        values=session.critic.values(batch) if session.critic else None,
        log_probs=session.actor.log_probs(batch) if with_old_log_probs else None,
        ref_log_probs=session.actor.ref_log_probs(batch, 0),
    )
    assert session.actor.old_log_probs(batch, 0) is None
    metrics = session.actor.update(with_advantages(batch, config.ppo), 0)
    return dict(full_weights(session.actor.model)), metrics


def test_an_update_of_one_step_needs_no_log_probs_from_before_it(checkpoint: Path) -> None:
    config = train_config(checkpoint, use_dynamic_batch_size=True, max_tokens_per_gpu=24)
    config = replace(config, actor=replace(config.actor, global_batch_size=None), ppo=replace(config.ppo, kl_coef=0.0))
    given, computed = (run_world(2, one_step, config, old)[0] for old in (True, False))
    assert given[1] == computed[1]
    for name, tensor in given[0].items():
        assert torch.equal(tensor, computed[0][name])


def old_log_probs(mesh: DeviceMesh, config: TrainConfig) -> bool:
    return Session(config, mesh).actor.old_log_probs(batches()[0], 0) is not None


def test_several_steps_or_a_kl_penalty_need_log_probs_from_before(checkpoint: Path) -> None:
    config = train_config(checkpoint)
    several = replace(config, ppo=replace(config.ppo, kl_coef=0.0))
    penalty = replace(config, actor=replace(config.actor, global_batch_size=None))
    passes = replace(penalty, ppo=replace(config.ppo, kl_coef=0.0, actor_update_steps=2))
    assert config.ppo.kl_coef != 0
    assert [run_world(1, old_log_probs, c)[0] for c in (several, penalty, passes)] == [True, True, True]


def test_a_rollout_that_trains_the_critic_alone_needs_none_without_a_penalty(checkpoint: Path) -> None:
    config = train_config(checkpoint, s=replace(SETTINGS, num_critic_only_steps=1))
    without = replace(config, ppo=replace(config.ppo, kl_coef=0.0))
    assert [run_world(1, old_log_probs, c)[0] for c in (config, without)] == [True, False]


def test_the_actor_of_the_first_rollout_does_not_depend_on_k(checkpoint: Path) -> None:
    one, three = (run_world(1, trained, train_config(checkpoint, k), batches()[:1])[0] for k in (1, 3))
    for name, tensor in one["actor"].items():
        assert torch.equal(tensor, three["actor"][name])
    assert not torch.equal(one["critic"]["score.weight"], three["critic"]["score.weight"])


OBJECTIVES: dict[str, dict[str, Any]] = {
    "gspo": {"advantage_estimator": "gspo"},
    "cispo": {"advantage_estimator": "cispo"},
    "reinforce++": {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1, "gamma": 0.9},
    "reinforce++ with a baseline": {"advantage_estimator": "reinforce_plus_plus_baseline", "kl_coef": 0.1},
    "truncated importance": {"use_tis": True, "tis_clip": 1.2},
    "icepop and sequence mask": {
        "use_tis": True,
        "tis_mode": "icepop",
        "tis_clip_low": 0.8,
        "use_opsm": True,
        "opsm_delta": 0.0,
    },
    "double-sided mask": {"use_rollout_logprobs": True, "dis_eps_low": 0.2, "dis_eps_high": 0.3},
    "half held out": {"critic_holdout_fraction": 0.5, "critic_update_steps": 2},
    "passes, refreshed and after": {
        "actor_update_steps": 2,
        "critic_update_steps": 2,
        "critic_targets": "refreshed",
        "advantage_values": "after-update",
    },
}


def trained_actor(mesh: DeviceMesh, config: TrainConfig) -> Weights:
    """After two rollouts whose log-probs are the policy's own with noise."""
    session = Session(config, mesh)
    for rollout_id, batch in enumerate(batches()):
        noise = np.random.default_rng(rollout_id).normal(scale=0.2, size=int(batch.response_offsets[-1]))
        sampled = session.actor.log_probs(batch) + noise.astype(np.float32)
        session.iterate(batch.with_columns(rollout_log_probs=sampled), rollout_id)
    roles = {"actor": session.actor, "critic": session.critic}
    return {name: {n: t.clone() for n, t in full_weights(role.model)} for name, role in roles.items() if role is not None}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_objective_depends_on_how_the_work_is_cut(objective: str, checkpoint: Path) -> None:
    ppo = PPOConfig(**OBJECTIVES[objective])
    whole, cut = (
        replace(train_config(checkpoint, 1, SETTINGS, **way), ppo=ppo)
        for way in ({"micro_batch_size": 8}, {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 24})
    )
    (want,), untrained = run_world(1, trained_actor, whole), run_world(1, initial, whole)[0]
    for got in run_world(2, trained_actor, cut):
        assert_equal(got, want)
    moved = [float((want["actor"][name] - tensor).norm() / tensor.norm()) for name, tensor in untrained["actor"].items()]
    assert max(moved) > 1e-3


def initial(mesh: DeviceMesh, config: TrainConfig) -> Weights:
    return {"actor": {name: tensor.clone() for name, tensor in full_weights(Session(config, mesh).actor.model)}}


def critic_alone(mesh: DeviceMesh, config: TrainConfig) -> tuple[list[list[str]], list[int], bool, bool]:
    """Metrics' names by rollout, the actor's clock after each, and whether the first left weights and moments alone."""
    session = Session(config, mesh)
    actor = session.actor
    before = {name: tensor.clone() for name, tensor in full_weights(actor.model)}
    metrics, clock = [], []
    for rollout_id, batch in enumerate(batches()):
        metrics.append(list(session.iterate(batch, rollout_id)))
        clock.append(actor.learner.rollouts_trained)
        if rollout_id == 0:
            weights = all(torch.equal(tensor, before[name]) for name, tensor in full_weights(actor.model))
            state = [moment for state in actor.learner.optimizer.state.values() for moment in state.values()]
            moments = not any(bool(local(moment).any()) for moment in state)
    return metrics, clock, weights, moments


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def test_a_rollout_for_the_critic_alone_leaves_the_actor_as_it_was(checkpoint: Path) -> None:
    config = train_config(checkpoint, s=replace(SETTINGS, num_critic_only_steps=1))
    for metrics, clock, weights, moments in run_world(2, critic_alone, config):
        assert all(name.startswith("critic-") for name in metrics[0])
        assert "pg_loss" in metrics[1]
        assert clock == [0, 1]
        assert weights
        assert moments


def test_an_update_that_needs_the_rollouts_log_probs_refuses_a_batch_without(checkpoint: Path) -> None:
    config = replace(train_config(checkpoint), ppo=PPOConfig(use_tis=True))
    with pytest.raises(AssertionError, match="use_tis and use_rollout_logprobs need the rollout's log-probs"):
        run_world(1, trained, config, batches())


def refuses_a_plug_in(mesh: DeviceMesh, folder: Path) -> str:
    config = train_config(folder)
    with pytest.raises(ValueError, match="custom_advantage_function_path is called by slime train") as caught:
        Session(replace(config, ppo=replace(config.ppo, custom_advantage_function_path="a.b")), mesh)
    return str(caught.value)


def test_the_engine_alone_refuses_what_only_slime_can_call(checkpoint: Path) -> None:
    run_world(1, refuses_a_plug_in, checkpoint)
