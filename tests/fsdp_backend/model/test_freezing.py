"""What the name lists freeze, and that frozen parameters stay."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM

from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.model.freezing import freeze
from fsdp_backend.session import Session
from fsdp_backend.state.weight_stream import full_weights
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("policy"), tied=False)


LISTS: dict[str, tuple[dict[str, Any], str]] = {
    "frozen": ({"freeze_params_name_list": ("self_attn", "^lm_head")}, "not attention or head"),
    "only": ({"only_train_params_name_list": (r"layers\.1\.",)}, "layer 1"),
    "both": ({"only_train_params_name_list": (r"layers\.1\.",), "freeze_params_name_list": ("norm",)}, "layer 1 but its norms"),
}
EXPECTED: dict[str, Callable[[str], bool]] = {
    "not attention or head": lambda name: "self_attn" not in name and not name.startswith("lm_head"),
    "not attention": lambda name: "self_attn" not in name,
    "layer 1": lambda name: ".layers.1." in name,
    "layer 1 but its norms": lambda name: ".layers.1." in name and "norm" not in name,
}


@pytest.mark.parametrize("lists", LISTS)
def test_expressions_are_searched_in_parameter_names(lists: str, checkpoint: Path) -> None:
    settings, expected = LISTS[lists]
    hf = AutoModelForCausalLM.from_pretrained(checkpoint)
    freeze(hf, RoleConfig(hf_checkpoint=str(checkpoint), **settings))
    trained = {name for name, p in hf.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in hf.named_parameters() if EXPECTED[expected](name)}
    assert 0 < len(trained) < len(list(hf.parameters()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze_params_name_list": ("attn_self",)}, "freeze_params_name_list: 'attn_self' is found in no parameter"),
        ({"only_train_params_name_list": ("norm", "typo")}, "only_train_params_name_list: 'typo' is found in no parameter"),
        ({"freeze_params_name_list": (".",)}, "leave nothing of"),
    ],
)
def test_an_expression_without_effect_or_nothing_left_is_an_error(
    settings: dict[str, Any], message: str, checkpoint: Path
) -> None:
    hf = AutoModelForCausalLM.from_pretrained(checkpoint)
    with pytest.raises(ValueError, match=message):
        freeze(hf, RoleConfig(hf_checkpoint=str(checkpoint), **settings))


def before_and_after(mesh: DeviceMesh, config: TrainConfig) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    session = Session(config, mesh)
    assert session.critic is not None
    models: tuple[Any, Any] = (session.actor.model, session.critic.model)
    before = [{name: tensor.clone() for name, tensor in full_weights(model)} for model in models]
    for rollout_id in range(2):
        session.iterate(random_batch(8, rollout_id), rollout_id)
    return [(old, dict(full_weights(model))) for old, model in zip(before, models, strict=True)]


def test_each_role_trains_what_its_own_lists_leave_the_same_on_any_number_of_ranks(checkpoint: Path) -> None:
    role = RoleConfig(hf_checkpoint=str(checkpoint), lr=1e-2, adam_eps=1e-3, weight_decay=0.1, global_batch_size=4)
    actor = replace(role, only_train_params_name_list=(r"layers\.1\.",))
    critic = replace(role, freeze_params_name_list=("self_attn",))
    config = TrainConfig(actor, critic, PPOConfig(critic_update_steps=2), num_rollout=2)
    (one,), two = (run_world(world, before_and_after, config) for world in (1, 2))
    for (old, new), (_, of_two), trains in zip(one, two[0], (EXPECTED["layer 1"], EXPECTED["not attention"]), strict=True):
        for name, tensor in old.items():
            assert torch.equal(tensor, new[name]) is not trains(name), name
            torch.testing.assert_close(of_two[name], new[name], atol=5e-6, rtol=0)
