"""One definition of the training flags, two roles."""

import dataclasses
from pathlib import Path

import pytest

from fsdp_backend.config import RoleConfig
from slime.arguments.roles import CRITIC_SWITCHES, CriticOverrides
from tests.slime.arguments.command_lines import parse, refusal, required


def test_the_critic_has_every_training_flag_of_the_actor() -> None:
    names = [field.name for field in dataclasses.fields(CriticOverrides)]
    assert names == [f"critic_{field.name}" for field in dataclasses.fields(RoleConfig)]


def test_critic_flags_that_are_not_set_take_the_actors_values(checkpoint: Path) -> None:
    flags = "--lr 3e-5 --adam-beta2 0.9 --global-batch-size 4 --bf16 --lr-decay-style cosine --lr-decay-iters 7"
    config = parse(checkpoint, *flags.split())
    assert config.critic == config.actor
    assert (config.critic.lr, config.critic.bf16, config.critic.lr_decay_iters) == (3e-5, True, 7)


def test_critic_flags_that_are_set_win_and_leave_the_actor_alone(checkpoint: Path) -> None:
    config = parse(checkpoint, "--lr", "3e-5", "--critic-lr", "1e-4", "--critic-global-batch-size", "2")
    assert (config.actor.lr, config.critic.lr) == (3e-5, 1e-4)
    assert (config.actor.global_batch_size, config.critic.global_batch_size) == (None, 2)
    assert config.critic == dataclasses.replace(config.actor, lr=1e-4, global_batch_size=2)


def test_a_critic_flag_set_to_zero_is_set(checkpoint: Path) -> None:
    config = parse(checkpoint, "--weight-decay", "0.1", "--critic-weight-decay", "0")
    assert (config.actor.weight_decay, config.critic.weight_decay) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("flags", "size", "steps"),
    [
        ("--global-batch-size 4", 4, None),
        ("--num-steps-per-rollout 4", None, 4),
        ("--global-batch-size 4 --num-steps-per-rollout 2", 4, 2),
        ("--global-batch-size 4 --critic-num-steps-per-rollout 8", None, 8),
        ("--num-steps-per-rollout 4 --critic-global-batch-size 8", 8, None),
        ("--global-batch-size 4 --num-steps-per-rollout 2 --critic-global-batch-size 8", 8, None),
        ("--num-steps-per-rollout 4 --critic-global-batch-size 4 --critic-num-steps-per-rollout 2", 4, 2),
    ],
)
def test_a_critic_that_says_how_large_its_steps_are_takes_nothing_of_that_from_the_actor(
    checkpoint: Path, flags: str, size: int | None, steps: int | None
) -> None:
    critic = parse(checkpoint, *flags.split()).critic
    assert (critic.global_batch_size, critic.num_steps_per_rollout) == (size, steps)


@pytest.mark.parametrize(
    ("flags", "actor", "critic"),
    [
        ("", False, False),
        ("--bf16", True, True),
        ("--critic-bf16", False, True),
        ("--critic-bf16 True", False, True),
        ("--bf16 --critic-bf16", True, True),
        ("--bf16 --no-critic-bf16", True, False),
        ("--bf16 --critic-bf16 False", True, False),
        ("--bf16 --critic-bf16=False", True, False),
        ("--no-bf16 --critic-bf16 --seed 3", False, True),
    ],
)
def test_switches_of_the_critic_are_spelled_like_the_actors(checkpoint: Path, flags: str, actor: bool, critic: bool) -> None:
    config = parse(checkpoint, *flags.split())
    assert (config.actor.bf16, config.critic.bf16) == (actor, critic)


def test_the_critics_switches_are_those_flags_that_are_on_or_off() -> None:
    names = ["bf16", "use_dynamic_batch_size", "gradient_checkpointing"]
    names += ["fsdp_reshard_after_forward", "fsdp_cpu_offload", "fsdp_defer_grad_reduce"]
    assert {f"critic_{name}" for name in names} == CRITIC_SWITCHES


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--lr -1", "--lr must not be negative, got -1.0"),
        ("--critic-lr -1", "--critic-lr must not be negative, got -1.0"),
        ("--lr 1e-3 --critic-lr 1e-5 --min-lr 1e-4", "--critic-min-lr is 0.0001, more than --critic-lr, which is 1e-05"),
        ("--critic-adam-beta1 1", "--critic-adam-beta1 must lie in [0, 1), got 1.0"),
        ("--critic-use-dynamic-batch-size", "--critic-max-tokens-per-gpu is needed with --critic-use-dynamic-batch-size"),
        ("--use-dynamic-batch-size", "--max-tokens-per-gpu is needed with --use-dynamic-batch-size"),
    ],
)
def test_a_bad_value_names_the_flag_of_the_role_it_belongs_to(checkpoint: Path, flags: str, message: str) -> None:
    assert refusal([*required(checkpoint), *flags.split()]).startswith(message)
