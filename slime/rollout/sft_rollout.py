"""The rollout of supervised training: nothing is generated, the data's own answers are the responses."""

from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.utils.types import Sample


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """Each prompt is a list of messages; the last one is the response to train on, those before it are the prompt."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        for sample in group:
            _split_answer(args.tokenizer, sample)
    return RolloutFnTrainOutput(groups)


def _split_answer(tokenizer: Any, sample: Sample) -> None:
    messages = sample.prompt
    if not isinstance(messages, list) or len(messages) < 2:
        raise UserError(f"sample {sample.index}: sft_loss needs messages that end with the answer, got {str(messages)[:80]!r}")
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    if not whole.startswith(prompt):
        raise UserError(f"sample {sample.index}: the chat template does not render the answer after the prompt")
    prompt_tokens = tokenizer.encode(prompt, add_special_tokens=False)
    answer_tokens = tokenizer.encode(whole[len(prompt) :], add_special_tokens=False)
    sample.tokens = prompt_tokens + answer_tokens
    sample.response, sample.response_length = whole[len(prompt) :], len(answer_tokens)
    sample.reward, sample.status = 0.0, Sample.Status.COMPLETED
