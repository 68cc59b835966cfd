"""The critic's values: from the right position, in float32, with gradients that reach every parameter on every rank."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForTokenClassification

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.loading import load_value
from fsdp_backend.model.value import ValueModel
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

BATCH = random_batch(4)
WHOLE_BATCH = (0, 1, 2, 3)


def save_critic(folder: Path, architecture: str = "qwen3") -> Path:
    """A tiny critic with a random head."""
    config = AutoConfig.from_pretrained(save_tiny_model(folder, architecture))
    config.num_labels = 1
    torch.manual_seed(1)
    model = AutoModelForTokenClassification.from_config(config)
    for parameter in model.score.parameters():
        nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def critic_of(folder: str, mesh: DeviceMesh, **role: Any) -> ValueModel:
    return load_value(folder, RoleConfig(hf_checkpoint=folder, **role), mesh)


def plain_critic(folder: str) -> Any:
    """The checkpoint as transformers loads it."""
    return AutoModelForTokenClassification.from_pretrained(folder, attn_implementation="sdpa").eval()


def tokens_of(batch: RolloutBatch, sample: int) -> tuple[Tensor, int]:
    """A sample's tokens, and how many of them are the prompt."""
    start, stop = batch.token_offsets[sample : sample + 2]
    return torch.from_numpy(batch.tokens[start:stop].copy()), int(batch.prompt_lengths[sample])


def prefix_values(plain: Any, batch: RolloutBatch, sample: int) -> Tensor:
    """V(s_t) of each response token, each from a forward over the tokens before it and nothing else."""
    tokens, prompt = tokens_of(batch, sample)
    return torch.stack([plain(tokens[None, :t]).logits[0, -1, 0] for t in range(prompt, len(tokens))])


def weights(packed: Pack) -> Tensor:
    """Different for every response token of the batch."""
    return torch.sin(packed.response_index.float() + 1)


def full_gradients(model: ValueModel) -> dict[str, Tensor]:
    gradients = {}
    for name, parameter in model.hf.named_parameters():
        assert isinstance(parameter.grad, DTensor), name
        gradients[name] = parameter.grad.full_tensor()
    return gradients


def check_prefixes(mesh: DeviceMesh, folder: str) -> None:
    model, plain = critic_of(folder, mesh), plain_critic(folder)
    with torch.no_grad():
        got = model(pack(BATCH, WHOLE_BATCH, device.current()))
        want = torch.cat([prefix_values(plain, BATCH, i) for i in WHOLE_BATCH])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_the_value_of_a_state_is_that_of_its_prefix_alone(architecture: str, tmp_path: Path) -> None:
    run_world(1, check_prefixes, str(save_critic(tmp_path, architecture)))


def check_gradients(mesh: DeviceMesh, folder: str, dealt: list[tuple[int, ...]], checkpointing: bool) -> None:
    model, plain = critic_of(folder, mesh, gradient_checkpointing=checkpointing), plain_critic(folder)
    packed = pack(BATCH, dealt[mesh.get_local_rank()], device.current())
    loss = (model(packed) * weights(packed)).sum() * mesh.size()
    loss.backward()

    used = [i for samples in dealt for i in samples]
    index = pack(BATCH, tuple(used), device.current())
    values = torch.cat([prefix_values(plain, BATCH, i) for i in used])
    (values * weights(index)).sum().backward()  # type: ignore[no-untyped-call]
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    torch.testing.assert_close(full_gradients(model), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
@pytest.mark.parametrize("dealt", [[WHOLE_BATCH], [(0, 1), (2, 3)], [(0, 1, 2), ()]], ids=["one rank", "two", "one idle"])
def test_gradients_are_those_of_the_prefixes_however_samples_are_dealt(
    dealt: list[tuple[int, ...]], checkpointing: bool, tmp_path: Path
) -> None:
    run_world(len(dealt), check_gradients, str(save_critic(tmp_path)), dealt, checkpointing)


def check_nothing_to_do(mesh: DeviceMesh, folder: str) -> None:
    silent = RolloutBatch.from_samples([[1, 2, 3], [4, 5]], [0, 0], [[], []], [0.0, 0.0])
    for packed in (pack(BATCH, (), device.current()), pack(silent, (0, 1), device.current())):
        model = critic_of(folder, mesh)
        values = model(packed)
        assert values.shape == (0,)
        values.sum().backward()
        assert not any(gradient.any() for gradient in full_gradients(model).values())


@pytest.mark.parametrize("world", [1, 2])
def test_no_response_tokens_give_no_values_and_gradients_of_zero(world: int, tmp_path: Path) -> None:
    run_world(world, check_nothing_to_do, str(save_critic(tmp_path)))


def check_bfloat16(mesh: DeviceMesh, folder: str) -> None:
    model = critic_of(folder, mesh, bf16=True)
    seen: list[torch.dtype] = []
    block = next(module for module in model.hf.modules() if type(module).__name__.endswith("MLP"))
    block.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    model.head.register_forward_hook(
        lambda module, inputs, output: seen.extend([module.weight.dtype, inputs[0].dtype, output.dtype])
    )
    packed = pack(BATCH, WHOLE_BATCH, device.current())
    values = model(packed)
    assert seen == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    assert values.dtype == torch.float32
    values.sum().backward()
    head = full_gradients(model)["score.bias"]
    assert head.dtype == torch.float32
    assert head.item() == len(values)
    saved = load_file(Path(folder) / "model.safetensors")
    for name, parameter in model.hf.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.full_tensor(), saved[name]), name


def test_under_bfloat16_the_blocks_compute_in_it_and_the_head_in_float32(tmp_path: Path) -> None:
    run_world(1, check_bfloat16, str(save_critic(tmp_path)))
