"""The policy's log-probs, entropies and gradients against plain transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from fsdp_backend import device
from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.config import RoleConfig
from fsdp_backend.model.loading import load_policy, load_value
from fsdp_backend.model.policy import PolicyModel
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

BATCH = random_batch(4)
WHOLE_BATCH = (0, 1, 2, 3)


def policy_of(folder: str, mesh: DeviceMesh, **role: Any) -> PolicyModel:
    return load_policy(folder, RoleConfig(hf_checkpoint=folder, **role), mesh)


def plain_policy(folder: str) -> Any:
    """The checkpoint as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()


def plain_results(plain: Any, samples: tuple[int, ...], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the response tokens, one sample at a time, from whole logits."""
    log_probs, entropies = [], []
    for i in samples:
        tokens = torch.from_numpy(BATCH.tokens[BATCH.token_offsets[i] : BATCH.token_offsets[i + 1]].copy())
        prompt = int(BATCH.prompt_lengths[i])
        log_softmax = torch.log_softmax(plain(tokens[None], use_cache=False).logits[0, prompt - 1 : -1] / temperature, -1)
        log_probs.append(log_softmax.gather(1, tokens[prompt:, None])[:, 0])
        entropies.append(-(log_softmax.exp() * log_softmax).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def weights(packed: Pack) -> Tensor:
    """Different for every response token of the batch."""
    return torch.sin(packed.response_index.float() + 1)


def full_gradients(model: PolicyModel) -> dict[str, Tensor]:
    gradients = {}
    for name, parameter in model.hf.named_parameters():
        assert isinstance(parameter.grad, DTensor), name
        gradients[name] = parameter.grad.full_tensor()
    return gradients


def check_results(mesh: DeviceMesh, folder: str) -> None:
    model, plain = policy_of(folder, mesh), plain_policy(folder)
    packed = pack(BATCH, WHOLE_BATCH, device.current())
    with torch.no_grad():
        for temperature in (1.0, 0.7):
            log_probs, entropies = model(packed, temperature)
            want_log_probs, want_entropies = plain_results(plain, WHOLE_BATCH, temperature)
            torch.testing.assert_close(log_probs, want_log_probs, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(entropies, want_entropies, atol=1e-5, rtol=1e-5)
    assert log_probs.dtype == entropies.dtype == torch.float32


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_log_probs_and_entropies_are_those_of_the_softmax_over_the_vocabulary(architecture: str, tmp_path: Path) -> None:
    run_world(1, check_results, str(save_tiny_model(tmp_path, architecture, tied=architecture != "llama")))


def check_gradients(mesh: DeviceMesh, folder: str, dealt: list[tuple[int, ...]], checkpointing: bool) -> None:
    model, plain = policy_of(folder, mesh, gradient_checkpointing=checkpointing), plain_policy(folder)
    packed = pack(BATCH, dealt[mesh.get_local_rank()], device.current())
    log_probs, entropies = model(packed, 0.7, entropy_grad=True)
    loss = ((log_probs + 0.3 * entropies) * weights(packed)).sum() * mesh.size()
    loss.backward()

    used = tuple(i for samples in dealt for i in samples)
    want_log_probs, want_entropies = plain_results(plain, used, 0.7)
    want = ((want_log_probs + 0.3 * want_entropies) * weights(pack(BATCH, used, device.current()))).sum()
    want.backward()  # type: ignore[no-untyped-call]
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    torch.testing.assert_close(full_gradients(model), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dealt", [[WHOLE_BATCH], [(0, 1), (2, 3)], [(0, 1, 2), ()]], ids=["one rank", "two", "one idle"])
def test_gradients_are_those_of_whole_logits_however_samples_are_dealt(
    dealt: list[tuple[int, ...]], tied: bool, checkpointing: bool, tmp_path: Path
) -> None:
    run_world(len(dealt), check_gradients, str(save_tiny_model(tmp_path, tied=tied)), dealt, checkpointing)


# Two samples without a response, as an aborted generation leaves them.
SILENT = RolloutBatch.from_samples([[1, 2, 3], [4, 5]], [0, 0], [[], []], [0.0, 0.0])


def check_nothing_to_do(mesh: DeviceMesh, folder: str, samples: tuple[int, ...]) -> None:
    packed = pack(SILENT, samples, device.current())
    for entropy_grad in (False, True):
        model = policy_of(folder, mesh)
        log_probs, entropies = model(packed, 1.0, entropy_grad)
        assert log_probs.shape == entropies.shape == (0,)
        (log_probs - 0.1 * entropies).sum().backward()
        assert not any(gradient.any() for gradient in full_gradients(model).values())


@pytest.mark.parametrize("samples", [(), (0, 1)], ids=["empty micro-batch", "samples without a response"])
@pytest.mark.parametrize("world", [1, 2])
def test_no_response_tokens_give_empty_results_and_gradients_of_zero(
    world: int, samples: tuple[int, ...], tmp_path: Path
) -> None:
    run_world(world, check_nothing_to_do, str(save_tiny_model(tmp_path)), samples)


def check_bfloat16(mesh: DeviceMesh, folder: str) -> None:
    model, full = policy_of(folder, mesh, bf16=True), policy_of(folder, mesh)
    packed = pack(BATCH, WHOLE_BATCH, device.current())
    log_probs, entropies = model(packed, 1.0)
    log_probs.sum().backward()
    assert log_probs.dtype == entropies.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in full_gradients(model).values())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    with torch.no_grad():
        exact = full(packed, 1.0)[0]
    assert not torch.equal(log_probs, exact)
    assert (log_probs - exact).abs().mean() < 0.1


def test_under_bfloat16_masters_gradients_and_results_stay_float32(tmp_path: Path) -> None:
    run_world(1, check_bfloat16, str(save_tiny_model(tmp_path)))


def check_both_roles(mesh: DeviceMesh, folder: str) -> None:
    policy, critic = policy_of(folder, mesh), load_value(folder, RoleConfig(hf_checkpoint=folder), mesh)
    packed = pack(BATCH, WHOLE_BATCH, device.current())
    for _ in range(2):
        critic.zero_grad()
        policy.zero_grad()
        values, (log_probs, _) = critic(packed), policy(packed, 1.0)
        values.sum().backward()
        log_probs.sum().backward()
        assert not values.any()
        with torch.no_grad():
            torch.testing.assert_close(
                log_probs.detach(), plain_results(plain_policy(folder), WHOLE_BATCH, 1.0)[0], atol=1e-5, rtol=1e-5
            )
    assert full_gradients(policy)["model.norm.weight"].any()
    assert critic.head.bias.grad.full_tensor().item() == len(values)  # type: ignore[union-attr]

    assert [type(model).__name__ for model in (policy, critic)] == ["FSDPPolicyModel", "FSDPValueModel"]
    assert [type(model.hf).__name__ for model in (policy, critic)] == ["Qwen3ForCausalLM", "Qwen3ForTokenClassification"]
    for auto in (AutoModelForCausalLM, AutoModelForTokenClassification):
        untouched = auto.from_pretrained(folder)
        assert not any(isinstance(module, FSDPModule) for module in untouched.modules())


def test_actor_and_critic_live_in_one_process(tmp_path: Path) -> None:
    run_world(2, check_both_roles, str(save_tiny_model(tmp_path)))
