"""Every kind of architecture gives transformers' own numbers as policy and as critic, and comes out as it went in."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from fsdp_backend import device
from fsdp_backend.batch.packing import pack
from fsdp_backend.config import PPOConfig, RoleConfig, TrainConfig
from fsdp_backend.model.loading import load_policy, load_value
from fsdp_backend.session import Session
from fsdp_backend.state.hf_export import export_hf
from fsdp_backend.state.weight_stream import full_weights
from tests.tiny import ARCHITECTURES, random_batch, save_tiny_model
from tests.worlds import run_world

BATCH = random_batch(4)
ONE_SAMPLE_A_ROW = {"qwen3_next", "mamba", "bloom"}
WITHOUT_A_CLASSIFIER = {"gemma3_text", "qwen3_next", "mamba"}
"""Those that transformers has no …ForTokenClassification of."""

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def sample(i: int) -> Tensor:
    return torch.tensor(BATCH.tokens[BATCH.token_offsets[i] : BATCH.token_offsets[i + 1]])


def rows(packs: bool) -> list[tuple[int, ...]]:
    return [(0, 1, 2, 3)] if packs else [(i,) for i in range(4)]


def log_probs_and_weights(mesh: DeviceMesh, folder: str) -> tuple[bool, Tensor, dict[str, Tensor]]:
    policy = load_policy(folder, RoleConfig(hf_checkpoint=folder), mesh)
    with torch.no_grad():
        pieces = [policy(pack(BATCH, row, device.current()), 1.0)[0] for row in rows(policy.packs_samples)]
    return policy.packs_samples, torch.cat(pieces), dict(full_weights(policy))


@each_architecture
def test_log_probs_are_those_of_transformers_and_the_weights_come_out_as_they_were_saved(
    architecture: str, tmp_path: Path
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path, architecture), dtype=torch.float32)
    want = []
    with torch.no_grad():
        for i, response in enumerate(BATCH.response_lengths):
            table = torch.log_softmax(plain(sample(i)[None], use_cache=False).logits[0, -response - 1 : -1], dim=-1)
            want.append(table.gather(1, sample(i)[-response:, None])[:, 0])
    again = tmp_path / "again"
    for packs, got, weights in run_world(2, log_probs_and_weights, str(tmp_path)):
        assert packs is (architecture not in ONE_SAMPLE_A_ROW)
        torch.testing.assert_close(got, torch.cat(want), atol=1e-5, rtol=1e-5)
        plain.save_pretrained(again)
        saved = AutoModelForCausalLM.from_pretrained(again, dtype=torch.float32).state_dict()
        assert weights.keys() <= saved_names(again)
        for name, tensor in weights.items():
            if name in saved:
                assert torch.equal(tensor, saved[name])


def saved_names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def values_before_and_after_export(mesh: DeviceMesh, folder: str) -> tuple[Tensor, Tensor]:
    critic = load_value(folder, RoleConfig(hf_checkpoint=folder), mesh)
    torch.manual_seed(0)
    for parameter in critic.head.parameters():
        torch.nn.init.normal_(parameter)
    out = Path(folder) / "critic"
    export_hf(critic, out, Path(folder))
    again = load_value(str(out), RoleConfig(hf_checkpoint=str(out)), mesh)
    row = rows(critic.packs_samples)[0]
    with torch.no_grad():
        return critic(pack(BATCH, row, device.current())), again(pack(BATCH, row, device.current()))


@each_architecture
def test_a_critic_gives_the_values_of_its_export(architecture: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, architecture)
    for before, after in run_world(2, values_before_and_after_export, str(tmp_path)):
        assert before.abs().max() > 0.1
        torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)
    if architecture in WITHOUT_A_CLASSIFIER:
        return
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", dtype=torch.float32).eval()
    response = int(BATCH.response_lengths[0])
    with torch.no_grad():
        want = plain(sample(0)[None]).logits[0, -response - 1 : -1, 0]
    torch.testing.assert_close(before[:response], want, atol=1e-5, rtol=1e-5)


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def trained(mesh: DeviceMesh, folder: str, settings: dict[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    said = Said()
    logging.getLogger("fsdp_backend").addHandler(said)
    role = RoleConfig(hf_checkpoint=folder, lr=1e-3, adam_eps=1e-3, **settings)
    session = Session(TrainConfig(role, role, PPOConfig(), num_rollout=1), mesh)
    session.iterate(BATCH, 0)
    return dict(full_weights(session.actor.model)), said.lines


@pytest.mark.parametrize("architecture", ["qwen3_next", "qwen3_moe"])
def test_an_architecture_that_cannot_be_packed_trains_one_sample_a_row_and_says_so(architecture: str, tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path, architecture))
    ((want, _),) = run_world(1, trained, folder, {})
    answers = run_world(2, trained, folder, {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096})
    for got, _ in answers:
        for name, tensor in want.items():
            torch.testing.assert_close(got[name], tensor, atol=2e-6, rtol=0)
    said = [line for _, lines in answers for line in lines]
    assert (len(said), architecture in "".join(said)) == ((2, True) if architecture in ONE_SAMPLE_A_ROW else (0, False))
