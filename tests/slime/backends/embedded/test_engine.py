"""What the engine generates, and when a response ends."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from slime.backends.embedded.decoding import Generation
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.sampling import SamplingParams
from tests.slime.backends.embedded.engines import CONTEXT, generate, open_engine, save_chat_model
from tests.tiny import save_tiny_model

GREEDY = SamplingParams(temperature=0, max_new_tokens=12, ignore_eos=True)
PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("engine") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EmbeddedEngine]:
    with open_engine(folder) as opened:
        yield opened


def random_prompts(count: int, longest: int = 40) -> list[list[int]]:
    numbers = random.Random(0)
    return [[numbers.randrange(5, 100) for _ in range(numbers.randrange(1, longest))] for _ in range(count)]


def one(engine: EmbeddedEngine, params: SamplingParams, prompt: list[int] = PROMPT) -> Generation:
    return generate(engine, [prompt], params)[0]


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_greedy_output_is_that_of_transformers_for_prompts_of_all_lengths(tmp_path: Path, architecture: str) -> None:
    folder = save_chat_model(tmp_path / "model", architecture=architecture)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = random_prompts(12)
    with open_engine(folder) as engine:
        done = generate(engine, prompts, replace(GREEDY, ignore_eos=False))
    for prompt, generation in zip(prompts, done, strict=True):
        tokens = torch.tensor([prompt])
        expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=12)
        assert generation.tokens == expected[0, len(prompt) :].tolist()
    assert len({tuple(generation.tokens) for generation in done}) > 6


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward_at_the_same_temperature(
    engine: EmbeddedEngine, folder: Path, temperature: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = random_prompts(10)
    own_lengths = [replace(GREEDY, temperature=temperature, max_new_tokens=3 + 2 * i) for i in range(10)]
    for prompt, generation in zip(prompts, generate(engine, prompts, *own_lengths), strict=True):
        logits = model(torch.tensor([prompt + generation.tokens])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(generation.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(generation.log_probs), expected, atol=1e-4, rtol=0)


def test_a_seeds_tokens_do_not_depend_on_what_else_is_in_the_batch(engine: EmbeddedEngine) -> None:
    seeded = SamplingParams(sampling_seed=7, max_new_tokens=20)
    alone = one(engine, seeded)
    others = [SamplingParams(temperature=0.5 + 0.1 * i, max_new_tokens=1 + i, top_k=3 + i) for i in range(20)]
    crowd = generate(engine, [*random_prompts(20), PROMPT], *others, seeded)
    assert crowd[-1].tokens == alone.tokens
    assert one(engine, replace(seeded, max_new_tokens=9)).tokens == alone.tokens[:9]
    assert one(engine, replace(seeded, sampling_seed=8)).tokens != alone.tokens


def test_requests_without_a_seed_differ(engine: EmbeddedEngine) -> None:
    drawn = generate(engine, [PROMPT] * 8, SamplingParams(max_new_tokens=20))
    assert len({tuple(generation.tokens) for generation in drawn}) == 8


def test_first_tokens_are_drawn_as_often_as_the_models_probabilities_say(engine: EmbeddedEngine, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    probs = model(torch.tensor([PROMPT])).logits[0, -1].double().softmax(-1)
    seeds = [SamplingParams(max_new_tokens=1, sampling_seed=seed) for seed in range(1500)]
    drawn = torch.tensor([g.tokens[0] for g in generate(engine, [PROMPT] * len(seeds), *seeds)])
    common = probs > 0.02
    assert common.sum() > 5
    expected = probs[common] * len(seeds)
    deviations = (drawn.bincount(minlength=len(probs))[common] - expected) / (expected * (1 - probs[common])).sqrt()
    assert deviations.abs().max() < 4


def test_top_k_one_is_greedy_and_top_p_stays_within_the_nucleus(engine: EmbeddedEngine, folder: Path) -> None:
    sampled = replace(GREEDY, temperature=1.0)
    assert one(engine, replace(sampled, top_k=1)).tokens == one(engine, GREEDY).tokens
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for generation in generate(engine, [PROMPT] * 10, replace(sampled, top_p=0.5)):
        probs = model(torch.tensor([PROMPT + generation.tokens])).logits[0, len(PROMPT) - 1 : -1].softmax(-1)
        likelier = torch.where(probs > probs.gather(-1, torch.tensor(generation.tokens)[:, None]), probs, 0).sum(-1)
        assert likelier.max() < 0.5


def test_a_response_ends_at_the_models_end_of_sequence_which_its_text_leaves_out(engine: EmbeddedEngine) -> None:
    greedy = one(engine, GREEDY)
    (end,) = engine.end_ids
    ends = [g for g in generate(engine, [PROMPT] * 60, SamplingParams(max_new_tokens=100)) if end in g.tokens]
    assert ends
    for generation in ends:
        assert generation.tokens.index(end) == len(generation.tokens) - 1
        assert generation.finish_reason == {"type": "stop", "matched": end}
        assert engine.text(generation) == engine.tokenizer.decode(generation.tokens[:-1], skip_special_tokens=True)
    assert engine.text(greedy) == engine.tokenizer.decode(greedy.tokens, skip_special_tokens=True)


def test_untrimmed_text_has_what_ended_it(engine: EmbeddedEngine) -> None:
    greedy = one(engine, GREEDY)
    stop = engine.tokenizer.decode(greedy.tokens[4:5])
    whole = replace(GREEDY, stop=stop, no_stop_trim=True, skip_special_tokens=False, spaces_between_special_tokens=False)
    done = one(engine, whole)
    assert done.finish_reason == {"type": "stop", "matched": stop}
    assert engine.text(done) == engine.tokenizer.decode(done.tokens)
    assert engine.text(done).endswith(stop)
    assert not engine.text(one(engine, replace(whole, no_stop_trim=False))).endswith(stop)
    by_token = one(engine, replace(whole, stop=None, stop_token_ids=[greedy.tokens[4]]))
    assert engine.text(by_token) == engine.tokenizer.decode(by_token.tokens)


def test_every_end_that_the_checkpoint_declares_counts(folder: Path, tmp_path: Path) -> None:
    other = save_chat_model(tmp_path / "model", eos_token_id=[60, 61])
    with open_engine(other) as engine:
        assert engine.end_ids == {60, 61, engine.tokenizer.eos_token_id}


def test_a_stop_token_ends_a_response_even_when_the_end_of_sequence_is_ignored(engine: EmbeddedEngine) -> None:
    greedy = one(engine, GREEDY).tokens
    stop = greedy[4]
    done = one(engine, replace(GREEDY, stop_token_ids=[stop, 10**9, -1]))
    assert done.tokens == greedy[: greedy.index(stop) + 1]
    assert done.finish_reason == {"type": "stop", "matched": stop}
    assert engine.text(done) == engine.tokenizer.decode(done.tokens[:-1])


def test_ignoring_the_end_of_sequence_goes_on_behind_it(engine: EmbeddedEngine) -> None:
    (end,) = engine.end_ids
    ignoring = SamplingParams(max_new_tokens=100, ignore_eos=True)
    done = generate(engine, [PROMPT] * 60, ignoring)
    assert {len(generation.tokens) for generation in done} == {100}
    assert any(end in generation.tokens[:-1] for generation in done)


def test_a_stop_string_ends_a_response_and_is_left_out_of_its_text(engine: EmbeddedEngine) -> None:
    greedy = one(engine, GREEDY)
    text = engine.tokenizer.decode(greedy.tokens)
    stop = text[3:6]
    done = one(engine, replace(GREEDY, stop=["not there", stop]))
    assert done.tokens == greedy.tokens[: text.index(stop) + 3]
    assert done.finish_reason == {"type": "stop", "matched": stop}
    assert engine.text(done) == text[: text.index(stop)]


def byte_tokenizer() -> Any:
    """One token a byte: a character may need four."""
    alphabet = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_stop_string_of_many_tokens_a_character_is_found(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", vocab_size=256)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    with open_engine(folder) as engine:
        tokens = engine.tokenizer.encode("fin🙂終🙂終x")
        request = engine.generation("", PROMPT, SamplingParams(stop="🙂終🙂終"))
        for token in tokens:
            request.tokens.append(token)
            if engine.is_finished(request):
                break
        assert request.finish_reason == {"type": "stop", "matched": "🙂終🙂終"}
        assert request.tokens == tokens[:-1]
        assert engine.text(request) == "fin"


def test_a_response_of_the_longest_length_is_cut_off(engine: EmbeddedEngine) -> None:
    done = one(engine, replace(GREEDY, max_new_tokens=5))
    assert len(done.tokens) == len(done.log_probs) == 5
    assert done.finish_reason == {"type": "length", "length": 5}


def test_the_context_limits_a_response_too(engine: EmbeddedEngine) -> None:
    prompt = (PROMPT * CONTEXT)[: CONTEXT - 4]
    done = one(engine, replace(GREEDY, max_new_tokens=10**9), prompt)
    assert (len(done.tokens), done.finish_reason) == (4, {"type": "length", "length": 4})


def test_no_new_tokens_is_a_response_too(engine: EmbeddedEngine) -> None:
    done = one(engine, SamplingParams(max_new_tokens=0))
    assert (done.tokens, done.log_probs, done.finish_reason) == ([], [], {"type": "length", "length": 0})
    assert engine.text(done) == ""


def test_before_min_new_tokens_nothing_that_ends_a_response_is_drawn(engine: EmbeddedEngine) -> None:
    greedy = one(engine, GREEDY).tokens
    stops = list(range(5, 90))
    done = one(engine, replace(GREEDY, min_new_tokens=6, stop_token_ids=[*stops, 10**9, -1]))
    assert done.finish_reason is not None
    assert not set(done.tokens[:6]) & set(stops)
    assert len(done.tokens) > 6
    assert set(greedy[:6]) & set(stops)
    early = one(engine, replace(GREEDY, stop_token_ids=stops))
    assert len(early.tokens) < 6


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "input_ids is empty"),
        ([1] * CONTEXT, f"input_ids has {CONTEXT} tokens, the context is {CONTEXT}"),
        ([1, 101], r"input_ids must lie in \[0, 101\)"),
        ([-1], r"input_ids must lie in \[0, 101\)"),
    ],
)
def test_a_prompt_that_cannot_be_generated_from_is_refused(engine: EmbeddedEngine, prompt: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        engine.generation("", prompt, GREEDY)


def test_new_weights_change_what_is_generated_and_the_version(folder: Path, tmp_path: Path) -> None:
    other = save_chat_model(tmp_path / "other", seed=5)
    with open_engine(folder) as engine, open_engine(other) as reference:
        before = one(engine, GREEDY)
        engine.load_weights(other, "12")
        after = one(engine, GREEDY)
        assert after.tokens == one(reference, GREEDY).tokens != before.tokens
        assert (before.weight_version, after.weight_version, engine.weight_version) == ("0", "12", "12")


def test_weights_that_do_not_fit_are_refused_and_nothing_changes(folder: Path, tmp_path: Path) -> None:
    torn = save_chat_model(tmp_path / "torn", seed=5)
    file = torn / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    empty = tmp_path / "empty"
    empty.mkdir()
    wider = save_chat_model(tmp_path / "wider", intermediate_size=32)
    with open_engine(folder) as engine:
        before = one(engine, GREEDY)
        for wrong in (torn, empty, wider, tmp_path / "missing"):
            with pytest.raises(ValueError, match=str(wrong)):
                engine.load_weights(wrong, "12")
        after = one(engine, GREEDY)
    assert (after.tokens, after.log_probs, after.weight_version) == (before.tokens, before.log_probs, "0")


def test_a_tied_head_may_be_in_the_checkpoint_under_its_own_name_too(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with open_engine(folder) as engine:
        engine.load_weights(tmp_path, "3")
        assert engine.weight_version == "3"


def test_logits_that_are_not_finite_fail_the_request_rather_than_reach_training(folder: Path) -> None:
    with open_engine(folder) as engine:
        engine.model.model.norm.weight.fill_(float("nan"))
        for params in (GREEDY, replace(GREEDY, temperature=1.0)):
            with pytest.raises(ArithmeticError, match=r"logits are not finite \(weight version 0\)"):
                one(engine, params)
