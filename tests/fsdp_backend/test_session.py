"""Whole PPO iterations, sharded, against a plain single-process reference: equal parameter by parameter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.targets import with_targets
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
    for role in ("actor", "critic"):
        assert got[role].keys() == want[role].keys()
        for name, tensor in want[role].items():
            difference = float((got[role][name] - tensor).norm() / tensor.norm())
            assert difference <= tolerance, f"{role} {name} differs by {difference}"


# Clipping hides the size of a gradient: without it, a wrong factor in a loss would show.
@pytest.mark.parametrize(("k", "clip_grad"), [(1, 100.0), (2, 100.0), (3, 100.0), (2, 0.5)])
def test_iterations_equal_the_single_process_reference_on_one_and_two_ranks(checkpoint: Path, k: int, clip_grad: float) -> None:
    settings = replace(SETTINGS, critic_update_steps=k, clip_grad=clip_grad)
    reference = ReferencePPO(checkpoint, settings)
    for rollout_id, batch in enumerate(batches()):
        reference.iterate(reference_samples(batch), rollout_id)
    want = {role: {n: p.detach() for n, p in getattr(reference, role).named_parameters()} for role in ("actor", "critic")}
    for world in (1, 2):
        for got in run_world(world, trained, train_config(checkpoint, k, settings), batches()):
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
        values=session.critic.values(batch),
        log_probs=session.actor.log_probs(batch) if with_old_log_probs else None,
        ref_log_probs=session.actor.ref_log_probs(batch),
    )
    assert session.actor.old_log_probs(batch) is None
    metrics = session.actor.update(with_targets(batch, config.ppo))
    return dict(full_weights(session.actor.model)), metrics


def test_an_update_of_one_step_needs_no_log_probs_from_before_it(checkpoint: Path) -> None:
    config = train_config(checkpoint, use_dynamic_batch_size=True, max_tokens_per_gpu=24)
    config = replace(config, actor=replace(config.actor, global_batch_size=None), ppo=replace(config.ppo, kl_coef=0.0))
    given, computed = (run_world(2, one_step, config, old)[0] for old in (True, False))
    assert given[1] == computed[1]
    for name, tensor in given[0].items():
        assert torch.equal(tensor, computed[0][name])


def old_log_probs(mesh: DeviceMesh, config: TrainConfig) -> bool:
    return Session(config, mesh).actor.old_log_probs(batches()[0]) is not None


def test_several_steps_or_a_kl_penalty_need_log_probs_from_before(checkpoint: Path) -> None:
    config = train_config(checkpoint)
    several = replace(config, ppo=replace(config.ppo, kl_coef=0.0))
    penalty = replace(config, actor=replace(config.actor, global_batch_size=None))
    assert config.ppo.kl_coef != 0
    assert [run_world(1, old_log_probs, c)[0] for c in (several, penalty)] == [True, True]


def test_the_actor_of_the_first_rollout_does_not_depend_on_k(checkpoint: Path) -> None:
    one, three = (run_world(1, trained, train_config(checkpoint, k), batches()[:1])[0] for k in (1, 3))
    for name, tensor in one["actor"].items():
        assert torch.equal(tensor, three["actor"][name])
    assert not torch.equal(one["critic"]["score.weight"], three["critic"]["score.weight"])
