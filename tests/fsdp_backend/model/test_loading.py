"""From a checkpoint folder to sharded models: what is read, by whom, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from fsdp_backend import device
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.model.checkpoint_files import CheckpointFiles
from fsdp_backend.model.loading import load_policy, load_value
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel
from fsdp_backend.session import Session
from tests.memory import allocated_by
from tests.tiny import VOCABULARY, random_batch, save_tiny_model
from tests.worlds import run_world

each_world = pytest.mark.parametrize("world", [1, 2, 4])


def policy_of(folder: str, mesh: DeviceMesh, **role: Any) -> PolicyModel:
    return load_policy(folder, RoleConfig(hf_checkpoint=folder, **role), mesh)


def critic_of(folder: str, mesh: DeviceMesh, **role: Any) -> ValueModel:
    return load_value(folder, RoleConfig(hf_checkpoint=folder, **role), mesh)


def whole(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.full_tensor().detach()


def packed_batch() -> Pack:
    return pack(random_batch(4), (0, 1, 2, 3), device.current())


def saved_tensors(folder: str) -> dict[str, Tensor]:
    return {name: tensor for file in Path(folder).glob("*.safetensors") for name, tensor in load_file(file).items()}


def save_other(folder: Path, model_type: str, **config: Any) -> Path:
    """A tiny causal language model of any architecture."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **config)).save_pretrained(folder)
    return folder


def save_classifier(folder: Path, auto: Any, seed: int = 0) -> Path:
    """The tiny qwen3 with one label and a random head, as the given auto class saves it."""
    config = AutoConfig.from_pretrained(save_tiny_model(folder))
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(seed)
    model = auto.from_config(config)
    for parameter in model.score.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def rename(folder: Path, name: str, new: str) -> Path:
    (folder / name).rename(folder / new)
    return folder


def edit_tensors(folder: Path, drop: str | None = None, **changes: Tensor) -> Path:
    tensors = load_file(folder / "model.safetensors") | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if name != drop}, folder / "model.safetensors")
    return folder


def check_parameters(mesh: DeviceMesh, folder: str, tied: bool) -> None:
    model, saved = policy_of(folder, mesh), saved_tensors(folder)
    parameters = dict(model.hf.named_parameters())
    assert parameters.keys() == saved.keys()
    assert ("lm_head.weight" in parameters) is not tied
    assert model.tied is tied
    for name, parameter in parameters.items():
        assert torch.equal(whole(parameter), saved[name]), name
        rows = ceil(parameter.shape[0] / mesh.size())
        local = parameter.to_local()
        assert local.numel() <= rows * parameter[0].numel(), name
        assert local.untyped_storage().nbytes() <= rows * parameter[0].numel() * 4, name


@each_world
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_rank_holds_its_rows_of_the_checkpoint_and_a_tied_head_stays_tied(tied: bool, world: int, tmp_path: Path) -> None:
    # 41 rows over 4 ranks: the last rank has fewer.
    run_world(world, check_parameters, str(save_tiny_model(tmp_path, tied=tied, vocab_size=41)), tied)


def check_reads(mesh: DeviceMesh, folder: str) -> list[int]:
    read, sizes = CheckpointFiles.read, []

    def noted(files: CheckpointFiles, name: str, shape: torch.Size, start: int = 0, stop: int | None = None) -> Tensor:
        tensor = read(files, name, shape, start, stop)
        assert len(tensor) <= ceil(shape[0] / mesh.size()), name
        sizes.append(tensor.numel())
        return tensor

    CheckpointFiles.read = noted  # type: ignore[assignment, method-assign]
    policy_of(folder, mesh)
    return sizes


def test_the_ranks_together_read_the_checkpoint_once(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path, tied=True, vocab_size=41))
    total = sum(tensor.numel() for tensor in saved_tensors(folder).values())
    assert sum(sum(sizes) for sizes in run_world(4, check_reads, folder)) == total


def check_indexed(mesh: DeviceMesh, folder: str) -> None:
    saved = saved_tensors(folder)
    for name, parameter in policy_of(folder, mesh).hf.named_parameters():
        assert torch.equal(whole(parameter), saved[name]), name


def test_a_checkpoint_of_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path / "one", tied=False))
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    run_world(2, check_indexed, str(tmp_path / "many"))


def check_bfloat16(mesh: DeviceMesh, folder: str) -> None:
    saved = saved_tensors(folder)
    for name, parameter in policy_of(folder, mesh).hf.named_parameters():
        assert saved[name].dtype == torch.bfloat16
        assert parameter.dtype == torch.float32
        assert torch.equal(whole(parameter), saved[name].float()), name


def test_a_bfloat16_checkpoint_becomes_float32_masters(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path / "full"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    run_world(2, check_bfloat16, str(tmp_path / "half"))


def check_buffers(mesh: DeviceMesh, folder: str) -> None:
    plain = dict(AutoModelForCausalLM.from_pretrained(folder).named_buffers())
    for model in (policy_of(folder, mesh), critic_of(folder, mesh)):
        buffers = dict(model.hf.named_buffers())
        assert any("inv_freq" in name for name in buffers)
        for name, buffer in buffers.items():
            torch.testing.assert_close(buffer, plain[name], atol=0, rtol=0)


ROPE = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0},
}


@pytest.mark.parametrize("rope", ROPE)
def test_rotary_frequencies_are_those_of_transformers(rope: str, tmp_path: Path) -> None:
    run_world(1, check_buffers, str(save_tiny_model(tmp_path, "llama", rope_parameters=ROPE[rope])))


def refusal(mesh: DeviceMesh, folder: str, critic: bool) -> str:
    """The message of the ValueError that loading raises; empty if it loads."""
    try:
        critic_of(folder, mesh) if critic else policy_of(folder, mesh)
    except ValueError as error:
        return str(error)
    return ""


UP = "model.layers.1.mlp.up_proj.weight"
REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing tensor": (lambda folder: edit_tensors(folder, drop=UP), UP),
    "missing head": (lambda folder: edit_tensors(folder, drop="lm_head.weight"), "lm_head.weight"),
    "wrong shape": (lambda folder: edit_config(folder, intermediate_size=48), "mlp.gate_proj.weight has shape (64, 32)"),
    "tensor without a place": (
        lambda folder: edit_tensors(folder, model__layers__0__self_attn__q_proj__bias=torch.ones(32)),
        "model.layers.0.self_attn.q_proj.bias",
    ),
    "no safetensors": (lambda folder: rename(folder, "model.safetensors", "pytorch_model.bin"), "safetensors"),
    "softcapped logits": (lambda folder: edit_config(folder, final_logit_softcapping=30.0), "final_logit_softcapping"),
    "scaled logits": (lambda folder: edit_config(folder, logits_scaling=8.0), "logits_scaling"),
    "quantised weights": (lambda folder: edit_config(folder, quantization_config={"quant_method": "fp8"}), "quantiz"),
    "rotary frequencies by the longest sample of a row": (
        lambda folder: edit_config(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
        "dynamic",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_policy_that_would_not_be_the_checkpoints_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    break_it, message = REFUSED[case]
    (got,) = run_world(1, refusal, str(break_it(save_tiny_model(tmp_path, tied=False))), False)
    assert message in got


def test_every_rank_refuses(tmp_path: Path) -> None:
    answers = run_world(2, refusal, str(edit_tensors(save_tiny_model(tmp_path), drop=UP)), False)
    assert all(UP in answer for answer in answers)


def check_no_dropout(mesh: DeviceMesh, folder: str) -> None:
    policy, critic, packed = policy_of(folder, mesh), critic_of(folder, mesh), packed_batch()
    for parameter in critic.head.parameters():
        torch.nn.init.normal_(parameter)
    assert policy.training
    assert critic.training
    assert torch.equal(policy(packed, 1.0)[0], policy(packed, 1.0)[0])
    assert torch.equal(critic(packed), critic(packed))


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
SEED_OSS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
DROPOUT: dict[str, Callable[[Path], Path]] = {
    "attention": lambda folder: save_tiny_model(folder, attention_dropout=0.5),
    "classifier": lambda folder: edit_config(save_tiny_model(folder), classifier_dropout=0.5, hidden_dropout=0.5),
    "modules": lambda folder: save_other(folder, "gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5, **GPT2),
    "functions": lambda folder: save_other(folder, "seed_oss", residual_dropout=0.5, attention_dropout=0.5, **SEED_OSS),
}


@pytest.mark.parametrize("kind", DROPOUT)
def test_nothing_is_dropped_in_training_whatever_the_config_says(kind: str, tmp_path: Path) -> None:
    run_world(1, check_no_dropout, str(DROPOUT[kind](tmp_path)))


def check_fresh_head(mesh: DeviceMesh, folder: str) -> None:
    critic, saved = critic_of(folder, mesh), saved_tensors(folder)
    for name, parameter in critic.hf.named_parameters():
        if name.startswith("score"):
            assert not whole(parameter).any()
        else:
            assert torch.equal(whole(parameter), saved[name]), name
    with torch.no_grad():
        values = critic(packed_batch())
    assert len(values)
    assert not values.any()


@each_world
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_critic_of_a_language_model_has_its_backbone_and_values_of_zero(tied: bool, world: int, tmp_path: Path) -> None:
    run_world(world, check_fresh_head, str(save_tiny_model(tmp_path, tied=tied)))


def check_kept_head(mesh: DeviceMesh, folder: str) -> None:
    saved = saved_tensors(folder)
    parameters = dict(critic_of(folder, mesh).hf.named_parameters())
    assert saved.keys() <= parameters.keys()
    for name, parameter in parameters.items():
        assert torch.equal(whole(parameter), saved.get(name, torch.zeros(1))), name


@each_world
def test_a_critic_of_an_earlier_critic_keeps_its_head(world: int, tmp_path: Path) -> None:
    folder = str(save_classifier(tmp_path, AutoModelForTokenClassification))
    assert saved_tensors(folder)["score.bias"].any()
    run_world(world, check_kept_head, folder)


def test_a_critic_of_a_reward_model_keeps_its_head_and_gets_a_bias_of_zero(tmp_path: Path) -> None:
    folder = str(save_classifier(tmp_path, AutoModelForSequenceClassification))
    assert "score.bias" not in saved_tensors(folder)
    run_world(2, check_kept_head, folder)


REFUSED_CRITICS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "lone weight": (lambda folder: edit_tensors(folder, drop="score.bias"), "score.bias"),
    "lone bias": (lambda folder: edit_tensors(folder, drop="score.weight"), "score.weight"),
    "missing backbone": (lambda folder: edit_tensors(folder, drop=UP), UP),
    "several labels": (lambda folder: edit_tensors(folder, score__weight=torch.ones(2, 32)), "score.weight has shape (2, 32)"),
}


@pytest.mark.parametrize("case", REFUSED_CRITICS)
def test_half_a_critic_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    break_it, message = REFUSED_CRITICS[case]
    (got,) = run_world(1, refusal, str(break_it(save_classifier(tmp_path, AutoModelForTokenClassification))), True)
    assert message in got


def test_a_critic_without_head_and_without_a_part_of_its_backbone_is_refused(tmp_path: Path) -> None:
    (got,) = run_world(1, refusal, str(edit_tensors(save_tiny_model(tmp_path), drop=UP)), True)
    assert UP in got


def check_no_draws(mesh: DeviceMesh, folder: str) -> None:
    before = torch.get_rng_state()
    policy_of(folder, mesh)
    critic_of(folder, mesh)
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    run_world(1, check_no_draws, str(save_tiny_model(tmp_path)))


def peak_while_loading(mesh: DeviceMesh, folder: str, critic: bool) -> int:
    load = critic_of if critic else policy_of
    load(str(Path(folder) / "warm up"), mesh)
    return allocated_by(lambda: load(folder, mesh))


@pytest.mark.parametrize("critic", [False, True], ids=["policy", "critic"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_rank_allocates_its_share_of_the_model_and_no_more_than_a_tensor_besides(
    tied: bool, critic: bool, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"vocab_size": 4000, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 6}
    save_tiny_model(tmp_path, tied=tied, num_attention_heads=8, **sizes)
    save_tiny_model(tmp_path / "warm up", tied=tied)
    total = sum(t.nbytes for name, t in saved_tensors(str(tmp_path)).items() if not (critic and name == "lm_head.weight"))
    largest = sizes["vocab_size"] * sizes["hidden_size"] * 4
    # Had a rank held all of it, the peak would exceed the limit by far.
    limit = total // 4 + largest + 8 * 2**20
    assert limit < 0.6 * total
    for peak in run_world(4, peak_while_loading, str(tmp_path), critic):
        assert peak <= limit


def refusal_without_head(mesh: DeviceMesh, folder: str) -> str:
    with pytest.raises(ValueError, match="has no value head") as refused:
        load_value(folder, RoleConfig(hf_checkpoint="elsewhere"), mesh, require_head=True)
    return str(refused.value)


def test_an_earlier_critic_must_have_its_head(tmp_path: Path) -> None:
    policy = str(save_tiny_model(tmp_path / "policy"))
    assert run_world(2, refusal_without_head, policy) == [f"{policy} has no value head, as an earlier critic must"] * 2


def test_a_critic_may_be_of_another_size(tmp_path: Path) -> None:
    policy = save_tiny_model(tmp_path / "policy")
    critic = save_tiny_model(tmp_path / "critic", hidden_size=16, intermediate_size=48, num_hidden_layers=3, seed=4)
    role = RoleConfig(hf_checkpoint=str(policy), lr=1e-3)
    config = TrainConfig(role, replace(role, hf_checkpoint=str(critic)), PPOConfig(critic_update_steps=2), num_rollout=1)
    first, second = (run_world(world, sizes_and_loss, config)[0] for world in (1, 2))
    assert first[0] == (32, 16)
    assert first[1] == pytest.approx(second[1], abs=1e-6)


def sizes_and_loss(mesh: DeviceMesh, config: TrainConfig) -> tuple[tuple[int, int], float]:
    session = Session(config, mesh)
    assert session.critic is not None
    loss = session.iterate(random_batch(8), 0)["critic-pass_2/value_loss"]
    return (session.actor.model.hf.config.hidden_size, session.critic.model.hf.config.hidden_size), loss
