"""The recipe with a calculator: its data, its masks, and turns with a real engine."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.quickstart.tokenizer import build_tokenizer
from recipes.tool_use.calculator import calculate, generate, reward
from recipes.tool_use.demonstrations import generate_rollout
from recipes.tool_use.prepare import SIZES, demonstration, draw_rows
from slime.utils.types import Sample
from tests.slime.backends.embedded.engines import run


@pytest.mark.parametrize(
    ("response", "answer"),
    [("12*34=", "408"), ("7-30=", "-23"), ("1+1=2;2+3=", "5"), ("1+=", "error"), ("=", "error"), ("-1+2=", "error")],
)
def test_the_calculator_answers_the_last_call(response: str, answer: str) -> None:
    assert calculate(response) == answer


@pytest.mark.parametrize(
    ("response", "worth"), [("1+2=3;3", 1.0), ("3", 1.0), ("1+2=3;", 0.0), ("1+2=3;4", 0.0), ("1+2=", 0.0)]
)
def test_the_number_after_the_calculators_last_answer_counts(response: str, worth: float) -> None:
    assert run(reward(None, Sample(response=response, label="3"))) == worth


def test_questions_are_drawn_once_and_demonstrations_are_mostly_right() -> None:
    rows = draw_rows(sum(SIZES.values()), seed=1)
    assert len({row["prompt"] for row in rows}) == len(rows)
    assert rows[:20] == draw_rows(20, seed=1) != draw_rows(20, seed=2)
    right = [row["messages"][1]["content"].endswith(f";{row['answer']}") for row in rows]
    assert 0.2 < sum(right) / len(right) < 0.6


def test_the_calculators_part_of_a_demonstration_is_masked() -> None:
    text = demonstration("12*3=", random.Random(0))
    messages = [{"role": "user", "content": "12 times 3"}, {"role": "assistant", "content": text}]
    args = SimpleNamespace(tokenizer=build_tokenizer(), rollout_batch_size=1)
    source = SimpleNamespace(get_samples=lambda size: [[Sample(index=0, prompt=messages)]])
    (sample,) = generate_rollout(args, 0, source).samples[0]
    call, _, rest = text.partition("=")
    answer, _, last = rest.partition(";")
    assert sample.loss_mask == [1] * len(f"{call}=") + [0] * len(f"{answer};") + [1] * len(last) + [1]


def scripted(monkeypatch: pytest.MonkeyPatch, *turns: str) -> Sample:
    """The sample that comes of a model which writes these, the last one ended by itself."""
    tokenizer, left = build_tokenizer(), list(turns)

    async def writes(args: object, sample: Sample, sampling_params: dict[str, object]) -> Sample:
        assert sampling_params["stop"] == ["="]
        text = left.pop(0)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        meta = {"finish_reason": {"type": "stop" if text else "length"}, "weight_version": "0"}
        sample.append_response_tokens(args, tokens=tokens, log_probs=[-1.0] * len(tokens), meta_info=meta, text=text)
        return sample

    monkeypatch.setattr("recipes.tool_use.calculator.generate_tokens", writes)
    sample = Sample(tokens=tokenizer.encode("1 plus 2"))
    return run(generate(SimpleNamespace(tokenizer=tokenizer), sample, {"max_new_tokens": 32}))


def test_model_and_calculator_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = scripted(monkeypatch, "1+2=", "3*3=", "9")
    assert sample.response == "1+2=3;3*3=9;9"
    assert sample.loss_mask == [1] * 4 + [0] * 2 + [1] * 4 + [0] * 2 + [1]
    assert scripted(monkeypatch, "1+2=", "").status == Sample.Status.TRUNCATED
    assert scripted(monkeypatch, "1=", "1=", "1=").response == "1=error;1=error;1="


def test_the_makefile_runs_it() -> None:
    assert "recipes/tool_use/run.sh" in Path("Makefile").read_text()
