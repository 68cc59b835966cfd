"""Sample."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from slime.utils.types import Sample, Status


def test_a_fresh_sample_is_pending_and_shares_nothing_with_another() -> None:
    first, second = Sample(), Sample()
    assert first.status == Sample.Status.PENDING == Status.PENDING
    first.tokens.append(1)
    first.metadata["a"] = 1
    first.weight_versions.append("1")
    assert second == Sample()


def test_the_reward_to_train_on_is_the_number_or_the_named_entry() -> None:
    assert Sample(reward=0.5).get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
    sample = Sample(reward={"acc": 1.0, "format": 0.0})
    assert sample.get_reward_value(SimpleNamespace(reward_key="format")) == 0.0
    with pytest.raises(KeyError):
        sample.get_reward_value(SimpleNamespace(reward_key="length"))


META = {"finish_reason": {"type": "stop"}, "weight_version": 3, "completion_tokens": 2, "prompt_tokens": 4, "cached_tokens": 1}


def test_model_and_tool_take_turns_in_one_response() -> None:
    sample = Sample(tokens=[1, 2])
    sample.append_response_tokens(tokens=[3, 4], log_probs=[-0.5, -0.25], meta_info=META, text="ab")
    sample.append_response_tokens(tokens=[5], trainable=False, text="=")
    sample.append_response_tokens(tokens=[6], log_probs=[-1], meta_info={**META, "finish_reason": {"type": "length"}}, text="c")
    assert (sample.tokens, sample.response, sample.response_length) == ([1, 2, 3, 4, 5, 6], "ab=c", 4)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0, 1], [-0.5, -0.25, 0.0, -1.0])
    assert (sample.status, sample.weight_versions) == (Status.TRUNCATED, ["3", "3"])
    assert sample.effective_response_length == 3
    assert sample.spec_info == Sample.SpecInfo(completion_token_num=4)
    assert sample.prefix_cache_info == Sample.PrefixCacheInfo(cached_tokens=2, total_prompt_tokens=8)


def test_an_answer_without_tokens_sets_the_status_and_no_weight_version() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(tokens=[], log_probs=[], meta_info={**META, "finish_reason": {"type": "abort"}}, text="")
    assert (sample.status, sample.weight_versions, sample.response_length) == (Status.ABORTED, [], 0)


def test_terminal_information_can_be_left_out() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(tokens=[2], log_probs=[0.0], meta_info=META, update_terminal_info=False)
    assert (sample.status, sample.weight_versions, sample.loss_mask) == (Status.PENDING, [], [1])


def test_a_response_that_was_there_before_counts_as_trainable_with_an_observation_after_it() -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=2)
    sample.append_response_tokens(tokens=[4], trainable=False)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0], [0.0, 0.0, 0.0])
    assert Sample(response_length=2).effective_response_length == 2


@pytest.mark.parametrize(
    ("sample", "appended", "reason"),
    [
        (Sample(), {"tokens": [1]}, "trainable tokens need their log_probs"),
        (Sample(), {"tokens": [1], "log_probs": [0.0, 0.0]}, "2 log_probs for 1 tokens"),
        (Sample(), {"tokens": [1], "log_probs": [0.0], "trainable": False}, "observation tokens .* have no log_probs"),
        (Sample(response_length=2), {"tokens": [1], "log_probs": [0.0]}, "2 tokens without rollout_log_probs"),
        (Sample(loss_mask=[1]), {"tokens": [1], "trainable": False}, "loss_mask has 2 entries for a response of 1 tokens"),
    ],
)
def test_tokens_and_log_probs_that_do_not_belong_together_are_refused(
    sample: Sample, appended: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        sample.append_response_tokens(**appended)


def test_a_sample_comes_back_from_its_dict_with_plain_values_only() -> None:
    sample = Sample(index=3, status=Status.ABORTED, spec_info=Sample.SpecInfo(1, 2, 3, 4), custom_rm_path="a.b")
    again = Sample.from_dict(json.loads(json.dumps(sample.to_dict())))
    assert again == sample
    assert Sample.from_dict({"status": "pending", "mine": 1}).mine == 1  # type: ignore[attr-defined]
