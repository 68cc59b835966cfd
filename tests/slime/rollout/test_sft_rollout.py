"""The rollout of supervised training."""

from types import SimpleNamespace
from typing import Any

import pytest

from recipes.quickstart.tokenizer import build_tokenizer
from slime.arguments.errors import UserError
from slime.rollout.sft_rollout import generate_rollout
from slime.utils.types import Sample
from tests.slime.rollout.runs import batch_of, default_args

QUESTION = {"role": "user", "content": "1+1"}
ANSWER = {"role": "assistant", "content": "two"}


def rollout(messages: Any, template: str | None = None) -> Sample:
    """What becomes of one sample."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    groups = [[Sample(index=5, prompt=messages)]]
    source = SimpleNamespace(get_samples=lambda size: groups * size)
    args = SimpleNamespace(rollout_batch_size=1, tokenizer=tokenizer)
    return generate_rollout(args, 0, source).samples[0][0]


def test_the_last_message_is_the_response_with_the_end_that_the_model_must_learn() -> None:
    sample, tokenizer = rollout([QUESTION, ANSWER]), build_tokenizer()
    assert tokenizer.decode(sample.tokens) == "<|user|>1+1<|end|><|assistant|>two<|end|>"
    assert tokenizer.decode(sample.tokens[-sample.response_length :]) == sample.response == "two<|end|>"
    assert (len(sample.tokens), sample.response_length, sample.status) == (10, 4, Sample.Status.COMPLETED)


def test_all_tokens_of_the_response_are_trained_on_and_none_of_the_prompt() -> None:
    batch = batch_of(default_args(loss_type="sft_loss"), [rollout([QUESTION, ANSWER])])
    assert batch.loss_mask.tolist() == [1, 1, 1, 1]
    assert (batch.prompt_lengths.tolist(), batch.rollout_log_probs) == ([6], None)


def test_earlier_turns_are_prompt() -> None:
    sample = rollout([QUESTION, ANSWER, {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}])
    assert sample.response == "yes<|end|>"
    assert sample.response_length == 4


@pytest.mark.parametrize("messages", ["just text", [QUESTION], []])
def test_data_without_an_answer_names_the_sample(messages: Any) -> None:
    with pytest.raises(UserError, match="sample 5: sft_loss needs messages that end with the answer"):
        rollout(messages)


def test_a_template_that_does_not_render_the_answer_after_the_prompt_names_the_sample() -> None:
    template = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(UserError, match="sample 5: the chat template does not render the answer after the prompt"):
        rollout([QUESTION, ANSWER], template)
