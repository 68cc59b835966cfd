"""Exported folders: transformers loads them without a remark, and computes what the sharded model does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from fsdp_backend import device
from fsdp_backend.batch.packing import pack
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.loading import load_policy, load_value
from fsdp_backend.model.policy import PolicyModel
from fsdp_backend.model.value import ValueModel
from fsdp_backend.state import hf_export
from fsdp_backend.state.hf_export import export_hf
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

BATCH = random_batch(3)
INDEX = "model.safetensors.index.json"
WHOLE_EXPORT = ["config.json", "generation_config.json", "model.safetensors"]


def loaded(mesh: DeviceMesh, source: Path, critic: bool, bf16: bool = False) -> PolicyModel | ValueModel:
    role = RoleConfig(hf_checkpoint=str(source), bf16=bf16)
    return load_value(str(source), role, mesh) if critic else load_policy(str(source), role, mesh)


def changed(mesh: DeviceMesh, source: Path, critic: bool, bf16: bool = False) -> PolicyModel | ValueModel:
    """A model whose every parameter has moved away from the checkpoint's, differently on every rank."""
    model = loaded(mesh, source, critic, bf16)
    generator = torch.Generator().manual_seed(mesh.get_local_rank())
    with torch.no_grad():
        for parameter in model.hf.parameters():
            local = parameter.to_local()
            local.add_(torch.rand(local.shape, generator=generator) / 10 + 0.01)
    return model


def results(model: PolicyModel | ValueModel) -> Tensor:
    """Log-probs or values of the response tokens of the batch."""
    packed = pack(BATCH, (0, 1, 2), device.current())
    with torch.no_grad():
        return model(packed, 1.0)[0] if isinstance(model, PolicyModel) else model(packed)  # type: ignore[no-any-return]


def plain_results(folder: Path, critic: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same from the folder as transformers loads it, which must find every tensor it wants and no other."""
    auto: Any = AutoModelForTokenClassification if critic else AutoModelForCausalLM
    plain, report = auto.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(report.values()), report
    pieces = []
    for i in range(len(BATCH)):
        tokens = torch.from_numpy(BATCH.tokens[BATCH.token_offsets[i] : BATCH.token_offsets[i + 1]].copy())
        prompt = int(BATCH.prompt_lengths[i])
        with torch.no_grad():
            logits = plain(tokens[None]).logits[0, prompt - 1 : -1]
        pieces.append(logits[:, 0] if critic else torch.log_softmax(logits.float(), -1).gather(1, tokens[prompt:, None])[:, 0])
    return torch.cat(pieces)


def names_by_file(folder: Path) -> dict[str, list[str]]:
    """The tensor names of every safetensors file."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            found[file.name] = list(tensors.keys())
    return found


def export_changed(mesh: DeviceMesh, source: Path, target: Path, critic: bool, bytes_per_file: int | None = None) -> Tensor:
    if bytes_per_file is not None:
        hf_export.BYTES_PER_FILE = bytes_per_file
    model = changed(mesh, source, critic)
    export_hf(model, target, source)
    return results(model)


each_role = pytest.mark.parametrize("critic", [False, True], ids=["policy", "critic"])
each_tie = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@each_tie
@each_role
def test_transformers_loads_an_export_and_computes_what_the_ranks_do(critic: bool, tied: bool, tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path / "source", tied=tied)
    for sharded in run_world(2, export_changed, source, tmp_path / "export", critic):
        torch.testing.assert_close(plain_results(tmp_path / "export", critic), sharded, atol=1e-5, rtol=1e-5)


def before_and_after(mesh: DeviceMesh, source: Path, target: Path, critic: bool, bf16: bool) -> tuple[Tensor, Tensor]:
    """What a changed model computes, and what one computes that starts from its export."""
    model = changed(mesh, source, critic, bf16)
    export_hf(model, target, source)
    return results(model), results(loaded(mesh, target, critic, bf16))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@each_role
def test_what_starts_from_an_export_computes_the_same_bits_and_in_bfloat16_about_what_transformers_does(
    critic: bool, bf16: bool, tmp_path: Path
) -> None:
    source = save_tiny_model(tmp_path / "source")
    for before, after in run_world(2, before_and_after, source, tmp_path / "export", critic, bf16):
        assert torch.equal(before, after)
        plain = plain_results(tmp_path / "export", critic, torch.bfloat16 if bf16 else torch.float32)
        tolerance = 2e-2 if bf16 else 1e-5
        torch.testing.assert_close(plain.float(), before.float(), atol=tolerance, rtol=tolerance)


@each_role
def test_several_files_hold_every_tensor_once_and_load_by_their_index(critic: bool, tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source", tied=False), tmp_path / "export"
    limit = 20_000
    sharded = run_world(2, export_changed, source, export, critic, limit)[0]
    torch.testing.assert_close(plain_results(export, critic), sharded, atol=1e-5, rtol=1e-5)

    files = names_by_file(export)
    index = json.loads((export / INDEX).read_text())
    assert len(files) > 3
    assert index["weight_map"] == {name: file for file, names in files.items() for name in names}
    assert sum(map(len, files.values())) == len(index["weight_map"])
    assert all((export / file).stat().st_size < limit + 2_000 for file in files)


def test_an_export_of_several_files_is_a_checkpoint_to_start_from(tmp_path: Path) -> None:
    source = save_tiny_model(tmp_path / "source", tied=False)
    sharded = run_world(2, export_changed, source, tmp_path / "first", False, 20_000)[0]
    again = run_world(4, reloaded_results, tmp_path / "first")
    for results_of_rank in again:
        torch.testing.assert_close(results_of_rank, sharded, atol=1e-6, rtol=1e-6)


def reloaded_results(mesh: DeviceMesh, folder: Path) -> Tensor:
    return results(loaded(mesh, folder, critic=False))


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source", tied=True), tmp_path / "export"
    run_world(1, export_changed, source, export, False)
    (names,) = names_by_file(export).values()
    assert names.count("model.embed_tokens.weight") == 1
    assert "lm_head.weight" not in names


def check_values(mesh: DeviceMesh, source: Path, target: Path) -> None:
    """A critic that was exported and loaded again has the same parameters, head included."""
    first = changed(mesh, source, critic=True)
    export_hf(first, target, source)
    second = dict(loaded(mesh, target, critic=True).hf.named_parameters())
    for name, parameter in first.hf.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.full_tensor(), second[name].full_tensor()), name


def test_a_critic_starts_again_from_its_export_bit_for_bit(tmp_path: Path) -> None:
    run_world(2, check_values, save_tiny_model(tmp_path / "source"), tmp_path / "export")


def export_twice(mesh: DeviceMesh, source: Path, target: Path) -> None:
    model = changed(mesh, source, critic=False)
    hf_export.BYTES_PER_FILE = 20_000
    export_hf(model, target, source)
    hf_export.BYTES_PER_FILE = 10**9
    export_hf(model, target, source)


def test_an_export_replaces_the_folder_and_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source"), tmp_path / "out" / "export"
    run_world(2, export_twice, source, export)
    assert [path.name for path in export.parent.iterdir()] == ["export"]
    assert sorted(path.name for path in export.iterdir()) == WHOLE_EXPORT


def test_what_a_crashed_export_left_does_not_end_up_in_the_next(tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source"), tmp_path / "out" / "export"
    torn = export.with_name("export.partial")
    torn.mkdir(parents=True)
    (torn / "torn.safetensors").write_text("left by a crash")
    run_world(1, export_changed, source, export, False)
    assert [path.name for path in export.parent.iterdir()] == ["export"]
    assert sorted(path.name for path in export.iterdir()) == WHOLE_EXPORT


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source"), tmp_path / "export"
    tokenizer = {
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
    }
    for name in tokenizer | {"README.md", "optimizer.pt"}:
        (source / name).write_text(name)
    run_world(1, export_changed, source, export, False)
    assert {path.name for path in export.iterdir()} == tokenizer | set(WHOLE_EXPORT)
    assert all((export / name).read_text() == name for name in tokenizer)


def private_keys(config: dict[str, Any]) -> list[str]:
    return [name for name in config if name.startswith("_") or "attn_implementation" in name]


@each_role
def test_the_config_is_a_checkpoints_own(critic: bool, tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source"), tmp_path / "export"
    run_world(1, export_changed, source, export, critic)
    config = json.loads((export / "config.json").read_text())
    assert not private_keys(config)
    assert config["architectures"] == ["Qwen3ForTokenClassification" if critic else "Qwen3ForCausalLM"]
    assert config["dtype"] == "float32"
    for name, value in json.loads((source / "config.json").read_text()).items():
        assert name == "architectures" or config[name] == value, name


def test_a_critics_config_has_one_label_and_no_dropout(tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source", classifier_dropout=0.3, attention_dropout=0.2), tmp_path / "export"
    run_world(1, export_changed, source, export, True)
    config = AutoConfig.from_pretrained(export)
    assert config.num_labels == 1
    assert {name: value for name, value in config.to_dict().items() if "dropout" in name and value} == {}


def export_after_forward(mesh: DeviceMesh, source: Path, target: Path, critic: bool, bf16: bool) -> None:
    model = loaded(mesh, source, critic, bf16)
    results(model)
    export_hf(model, target, source)


@each_role
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_an_export_right_after_a_forward_holds_the_float32_masters(bf16: bool, critic: bool, tmp_path: Path) -> None:
    source, export = save_tiny_model(tmp_path / "source"), tmp_path / "export"
    run_world(2, export_after_forward, source, export, critic, bf16)
    with safe_open(source / "model.safetensors", "pt") as wanted, safe_open(export / "model.safetensors", "pt") as got:
        assert set(wanted.keys()) <= set(got.keys())
        for name in wanted.keys():  # noqa: SIM118
            assert torch.equal(got.get_tensor(name), wanted.get_tensor(name)), name
