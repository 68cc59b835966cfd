"""What the config classes refuse, what they derive, and what importing them costs."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from fsdp_backend.config import PPOConfig, RoleConfig


def role(**settings: Any) -> RoleConfig:
    return RoleConfig(hf_checkpoint="somewhere", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": -1e-6},
        {"lr_warmup_iters": -1},
        {"min_lr": 1e-3},
        {"lr_decay_iters": 0},
        {"lr_wsd_decay_iters": 0},
        {"global_batch_size": 0},
        {"num_steps_per_rollout": 0},
        {"clip_grad": -1.0},
        {"adam_beta1": 1.0},
        {"adam_beta1": -0.1},
        {"adam_beta2": 1.0},
        {"adam_beta2": -0.1},
        {"micro_batch_size": 0},
    ],
    ids=str,
)
def test_a_role_refuses_a_setting_by_its_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name} "):
        role(**settings)


@pytest.mark.parametrize("budget", [None, 0])
def test_dynamic_batches_need_a_token_budget(budget: int | None) -> None:
    with pytest.raises(ValueError, match=r"^max_tokens_per_gpu "):
        role(use_dynamic_batch_size=True, max_tokens_per_gpu=budget)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.0},
        {"min_lr": 1e-6, "lr": 1e-6},
        {"lr_decay_iters": 1, "lr_wsd_decay_iters": 1, "global_batch_size": 1, "num_steps_per_rollout": 1},
        {"clip_grad": 0.0, "adam_beta1": 0.0, "adam_beta2": 0.0},
        {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 1},
        {"max_tokens_per_gpu": 8192},
    ],
    ids=str,
)
def test_a_role_takes_what_lies_just_within_its_limits(settings: dict[str, Any]) -> None:
    assert {name: getattr(role(**settings), name) for name in settings} == settings


@pytest.mark.parametrize(
    "settings",
    [
        {"critic_update_steps": 0},
        {"eps_clip": -0.1},
        {"eps_clip_c": 1.0},
        {"value_clip": -0.1},
        {"gamma": 1.1},
        {"gamma": -0.1},
        {"lambd": 1.1},
        {"lambd": -0.1},
        {"critic_lambd": 1.1},
        {"critic_lambd": -0.1},
        {"lambd_alpha": 0.0},
        {"kl_loss_coef": 0.1},
    ],
    ids=str,
)
def test_ppo_refuses_a_setting_by_its_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name} "):
        PPOConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"eps_clip": 0.0, "value_clip": 0.0},
        {"eps_clip_c": 1.01},
        {"gamma": 0.0, "lambd": 0.0, "critic_lambd": 1.0},
        {"lambd_alpha": 0.05},
        {"kl_loss_coef": 0.1, "use_kl_loss": True},
    ],
    ids=str,
)
def test_ppo_takes_what_lies_just_within_its_limits(settings: dict[str, Any]) -> None:
    assert {name: getattr(PPOConfig(**settings), name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "critic", "reference"),
    [
        ({}, True, False),
        ({"kl_coef": 0.1}, True, True),
        ({"use_kl_loss": True}, True, True),
        ({"loss_type": "sft_loss"}, False, False),
        ({"loss_type": "sft_loss", "kl_coef": 0.1}, False, False),
    ],
    ids=str,
)
def test_a_model_is_held_only_where_the_objective_needs_it(settings: dict[str, Any], critic: bool, reference: bool) -> None:
    config = PPOConfig(**settings)
    assert (config.uses_critic, config.uses_reference) == (critic, reference)


def test_configs_are_frozen() -> None:
    for config in (role(), PPOConfig()):
        with pytest.raises(FrozenInstanceError):
            setattr(config, fields(config)[0].name, None)


def test_importing_the_config_imports_no_torch() -> None:
    code = "import sys, fsdp_backend.config; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
