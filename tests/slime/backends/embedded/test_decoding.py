"""What the model is given for a batch of prompts of different lengths."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from slime.backends.embedded.decoding import BatchDecoder, Generation, _mix, uniform_at
from slime.backends.embedded.sampling import SamplingParams
from tests.tiny import save_tiny_model

PROMPTS = [[3, 4, 5], [6], [7, 8]]


class RecordingModel:
    """Keeps what it is asked."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        self.asked.append({name: inputs[name].tolist() for name in ("input_ids", "attention_mask", "position_ids")})
        return self.model(**inputs)


@pytest.fixture
def model(tmp_path: Path) -> RecordingModel:
    return RecordingModel(AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path / "model"), dtype=torch.float32))


def decoder(model: RecordingModel, **params: Any) -> BatchDecoder:
    batch = [Generation(str(i), prompt, SamplingParams(**params)) for i, prompt in enumerate(PROMPTS)]
    return BatchDecoder(model, batch, random.Random(0))


def test_prompts_are_padded_on_the_left_and_each_starts_at_position_zero(model: RecordingModel) -> None:
    decoder(model).step("0")
    asked = model.asked[0]
    assert asked["input_ids"] == [[3, 4, 5], [0, 0, 6], [0, 7, 8]]
    assert asked["attention_mask"] == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert asked["position_ids"] == [[0, 1, 2], [0, 0, 0], [0, 0, 1]]


def test_after_the_prompt_only_the_newest_token_is_computed(model: RecordingModel) -> None:
    batch = decoder(model)
    batch.step("0")
    batch.batch[1].finish_reason = {"type": "stop"}
    batch.drop_finished()
    batch.step("1")
    first, third = batch.batch
    asked = model.asked[1]
    assert asked["input_ids"] == [[first.tokens[0]], [third.tokens[0]]]
    assert asked["attention_mask"] == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert asked["position_ids"] == [[3], [2]]
    assert (first.weight_version, len(first.tokens), len(third.log_probs)) == ("1", 2, 2)


def test_rows_that_finish_before_the_first_step_are_never_computed(model: RecordingModel) -> None:
    batch = decoder(model)
    batch.batch[0].finish_reason = {"type": "abort"}
    batch.drop_finished()
    batch.step("0")
    assert [len(generation.tokens) for generation in batch.batch] == [1, 1]
    assert len(model.asked[0]["input_ids"]) == 2


def test_requests_without_a_seed_draw_theirs_from_the_engines(model: RecordingModel) -> None:
    def tokens(seed: int, **params: Any) -> list[list[int]]:
        batch = [Generation("", PROMPTS[0], SamplingParams(**params)) for _ in range(4)]
        decoding = BatchDecoder(model, batch, random.Random(seed))
        for _ in range(8):
            decoding.step("0")
        return [generation.tokens for generation in batch]

    assert tokens(1) == tokens(1) != tokens(2)
    assert len({tuple(row) for row in tokens(1)}) == 4
    assert tokens(1, sampling_seed=5) == tokens(2, sampling_seed=5)


def test_draws_are_the_published_generators_and_depend_on_seed_and_position_alone() -> None:
    # splitmix64 from seed 1234567, first numbers as published with it (Vigna, Java's SplittableRandom).
    state, expected = 1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    step = 0x9E3779B97F4A7C15
    states = np.array([(state + i * step) % 2**64 for i in range(1, 4)], dtype=np.uint64)
    assert _mix(states).tolist() == expected
    seeds, positions = np.array([3, 4, 3], dtype=np.uint64), np.array([7, 7, 8], dtype=np.uint64)
    together = uniform_at(seeds, positions)
    assert together.tolist() == [uniform_at(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(3)]
    assert len(set(together.tolist())) == 3


def test_draws_are_uniform_along_positions_and_along_seeds() -> None:
    numbers = np.arange(20000, dtype=np.uint64)
    for draws in (uniform_at(numbers * 0 + 5, numbers), uniform_at(numbers, numbers * 0 + 5), uniform_at(numbers, numbers)):
        assert draws.min() >= 0
        assert draws.max() < 1
        counts = np.histogram(draws, bins=50, range=(0, 1))[0]
        # 49 degrees of freedom: the statistic exceeds 94 once in ten thousand.
        assert ((counts - 400) ** 2 / 400).sum() < 94
        assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.03


def test_a_response_goes_on_as_it_would_have_if_its_beginning_is_handed_back(model: RecordingModel) -> None:
    def generated(prompt: list[int], tokens: int) -> list[int]:
        batch = BatchDecoder(model, [Generation("a", prompt, SamplingParams(sampling_seed=9))], random.Random(0))
        for _ in range(tokens):
            batch.step("0")
        return batch.batch[0].tokens

    whole = generated([3, 4, 5], 12)
    begun = generated([3, 4, 5], 5)
    assert begun + generated([3, 4, 5, *begun], 7) == whole
