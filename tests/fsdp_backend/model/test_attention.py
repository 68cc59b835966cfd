"""Packed attention against plain transformers, one sample at a time, and against a naive masked softmax."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from fsdp_backend.model.attention import PACKED, packed_attention
from tests.tiny import VOCABULARY, save_tiny_model

LENGTHS = (5, 1, 12, 3)

# Windowed layers come after max_window_layers in qwen2.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen2": ("qwen2", {}),
    "llama": ("llama", {}),
    "gemma": ("gemma", {}),
    "gemma3 with a window": ("gemma3_text", {}),
    "qwen3 with experts": ("qwen3_moe", {}),
    "mixtral": ("mixtral", {}),
    "qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "llama with yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}}),
}


def tokens(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def starts(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def hidden_alone(model: Any, row: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Last hidden states [T, H] of each sample by itself."""
    return torch.cat(
        [model.base_model(piece[None], use_cache=False).last_hidden_state[0] for piece in torch.split(row, list(lengths))]
    )


def hidden_packed(model: Any, row: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Last hidden states [T, H] of all samples in one row."""
    positions = torch.cat([torch.arange(n) for n in lengths])
    return model.base_model(  # type: ignore[no-any-return]
        input_ids=row[None],
        position_ids=positions[None],
        use_cache=False,
        sample_lengths=lengths,
        sample_starts=starts(lengths),
    ).last_hidden_state[0]


def gradients(model: nn.Module, hidden: Tensor) -> list[Tensor]:
    """Of a loss that weighs every position and feature differently."""
    weights = torch.sin(torch.arange(hidden.numel(), dtype=torch.float32)).view_as(hidden)
    used = [p for name, p in model.named_parameters() if "lm_head" not in name]
    return list(torch.autograd.grad((hidden * weights).sum(), used))


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same checkpoint with transformers' own attention, and packed."""
    architecture, config = MODELS[request.param]
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), architecture, tied=False, **config)
    return (
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"),
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation=PACKED),
    )


def test_a_packed_row_gives_the_states_and_gradients_of_each_sample_alone(both: tuple[Any, Any]) -> None:
    plain, packed = both
    alone, together = hidden_alone(plain, tokens(), LENGTHS), hidden_packed(packed, tokens(), LENGTHS)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(packed, together), gradients(plain, alone), atol=1e-4, rtol=1e-4)


def test_other_samples_do_not_change_a_samples_states(both: tuple[Any, Any]) -> None:
    _, packed = both
    row, start, stop = tokens(), 6, 18
    other = (row + 1) % VOCABULARY
    other[start:stop] = row[start:stop]
    with torch.no_grad():
        before, after = hidden_packed(packed, row, LENGTHS), hidden_packed(packed, other, LENGTHS)
    # Not bit for bit: how many tokens an expert gets decides the shape of its matrix product.
    torch.testing.assert_close(before[start:stop], after[start:stop], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(before[:start], after[:start], atol=1e-2)
    assert not torch.allclose(before[stop:], after[stop:], atol=1e-2)


def test_later_tokens_do_not_change_earlier_states(both: tuple[Any, Any]) -> None:
    _, packed = both
    row, changed = tokens((12,)), tokens((12,))
    changed[7:] = (changed[7:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = hidden_packed(packed, row, (12,)), hidden_packed(packed, changed, (12,))
    torch.testing.assert_close(before[:7], after[:7], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(before[7:], after[7:], atol=1e-2)


def random_heads(heads: int, key_heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, heads, length, 8), torch.randn(1, key_heads, length, 8), torch.randn(1, key_heads, length, 8)


def naive(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scaling: float, window: int | None) -> Tensor:
    """[1, T, heads, D] by one softmax over the whole row, its mask filled in cell by cell."""
    sample = [i for i, n in enumerate(lengths) for _ in range(n)]
    total, repeats = len(sample), query.shape[1] // key.shape[1]
    mask = torch.full((total, total), float("-inf"))
    for q in range(total):
        for k in range(q + 1):
            if sample[q] == sample[k] and (window is None or q - k < window):
                mask[q, k] = 0
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    return (torch.softmax(query @ key.transpose(2, 3) * scaling + mask, -1) @ value).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 100])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_is_a_masked_softmax_within_each_sample(window: int | None, key_heads: int) -> None:
    query, key, value = random_heads(4, key_heads, sum(LENGTHS))
    samples: dict[str, Any] = {"sample_lengths": LENGTHS, "sample_starts": starts(LENGTHS)}
    got, weights = packed_attention(nn.Module(), query, key, value, None, scaling=0.3, sliding_window=window, **samples)
    assert weights is None
    torch.testing.assert_close(got, naive(query, key, value, LENGTHS, 0.3, window), atol=1e-5, rtol=1e-5)


class Bidirectional(nn.Module):
    is_causal = False


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "softcap": lambda: {"module": nn.Module(), "softcap": 50.0},
    "sinks": lambda: {"module": nn.Module(), "s_aux": torch.zeros(4)},
    "mask": lambda: {"module": nn.Module(), "attention_mask": torch.zeros(1, 1, 3, 3)},
    "module is not causal": lambda: {"module": Bidirectional()},
    "call is not causal": lambda: {"module": nn.Module(), "is_causal": False},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_exactly_is_refused(case: str) -> None:
    arguments = {"attention_mask": None, **REFUSED[case]()}
    query, key, value = random_heads(4, 4, 3)
    with pytest.raises(ValueError, match="not supported when packed"):
        packed_attention(query=query, key=key, value=value, sample_lengths=(3,), sample_starts=starts((3,)), **arguments)
