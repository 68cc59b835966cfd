"""From samples to the batch that training takes."""

import math
from typing import Any

import pytest

from slime.arguments.errors import UserError
from slime.rollout.to_batch import rollout_metrics
from slime.utils.types import Sample
from tests.slime.rollout.runs import batch_of, default_args

ARGS = default_args()


def sample(index: int | None = 0, **fields: Any) -> Sample:
    """Prompt [1, 2], response [3, 4, 5]."""
    settings = {"tokens": [1, 2, 3, 4, 5], "response_length": 3, "reward": 0.5, "status": Sample.Status.COMPLETED, **fields}
    return Sample(index=index, **settings)


def test_columns_are_those_of_the_samples_in_order() -> None:
    first = sample(7, rollout_log_probs=[-1.0, -2.0, -3.0], weight_versions=["3", "4"])
    second = sample(9, tokens=[6, 7], response_length=1, reward=1.0, rollout_log_probs=[-0.5], status=Sample.Status.TRUNCATED)
    batch = batch_of(ARGS, [first, second])
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (batch.token_offsets.tolist(), batch.response_offsets.tolist()) == ([0, 5, 7], [0, 3, 4])
    assert (batch.reward.tolist(), batch.truncated.tolist()) == ([0.5, 1.0], [False, True])
    assert (batch.sample_index.tolist(), batch.weight_version.tolist()) == ([7, 9], [4, 0])
    assert batch.rollout_log_probs is not None
    assert batch.rollout_log_probs.tolist() == [-1.0, -2.0, -3.0, -0.5]


def test_a_loss_mask_counts_and_none_means_every_token() -> None:
    assert batch_of(ARGS, [sample(0, loss_mask=[1, 0, 1]), sample(1)]).loss_mask.tolist() == [1, 0, 1, 1, 1, 1]


def test_a_removed_sample_keeps_its_tokens_and_trains_none_of_them() -> None:
    batch = batch_of(ARGS, [sample(0), sample(1, remove_sample=True, loss_mask=[1, 1, 1])])
    assert batch.loss_mask.tolist() == [1, 1, 1, 0, 0, 0]
    assert len(batch.tokens) == 10


def test_siblings_share_a_rollout_and_others_are_rollouts_of_their_own() -> None:
    batch = batch_of(ARGS, [sample(10, rollout_id=3), sample(11, rollout_id=3), sample(12)])
    assert batch.rollout_index.tolist() == [3, 3, 12]
    assert batch.sample_index.tolist() == [10, 11, 12]


def test_the_reward_key_picks_from_a_dict() -> None:
    batch = batch_of(default_args(reward_key="acc"), [sample(reward={"acc": 0.25, "format": 1.0})])
    assert batch.reward.tolist() == [0.25]


def test_rewards_are_those_that_the_estimator_trains_on() -> None:
    samples = [sample(0, group_index=4, reward=1.0), sample(1, group_index=4, reward=3.0)]
    args = default_args(advantage_estimator="grpo", grpo_std_normalization=False)
    assert batch_of(args, samples).reward.tolist() == [-1.0, 1.0]
    assert batch_of(ARGS, samples).reward.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("flag", ["use_tis", "use_rollout_logprobs"])
def test_a_sample_without_the_log_probs_that_the_loss_needs_is_named(flag: str) -> None:
    samples = [sample(40, rollout_log_probs=[0.0, 0.0, 0.0]), sample(41), sample(42)]
    with pytest.raises(UserError, match=r"^sample 41 has no rollout_log_probs, which --use-tis"):
        batch_of(default_args(**{flag: True}), samples)
    assert batch_of(default_args(**{flag: True}), samples[:1]).rollout_log_probs is not None
    assert batch_of(default_args(**{flag: True}, loss_type="sft_loss"), samples).rollout_log_probs is None


def test_log_probs_that_only_some_samples_have_are_left_out() -> None:
    assert batch_of(ARGS, [sample(0, rollout_log_probs=[0.0, 0.0, 0.0]), sample(1)]).rollout_log_probs is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": Sample.Status.PENDING}, "is pending"),
        ({"status": Sample.Status.ABORTED}, "is aborted"),
        ({"status": Sample.Status.FAILED}, "is failed"),
        ({"response_length": 0}, "5 tokens with a response of 0"),
        ({"response_length": 5}, "5 tokens with a response of 5"),
        ({"tokens": []}, "0 tokens with a response of 3"),
        ({"loss_mask": [1, 1]}, "2 entries in loss_mask for a response of 3 tokens"),
        ({"rollout_log_probs": [0.0] * 4}, "4 entries in rollout_log_probs for a response of 3 tokens"),
        ({"reward": None}, "has the reward None"),
        ({"reward": math.nan}, "has the reward nan"),
        ({"reward": math.inf}, "has the reward inf"),
        ({"reward": "1"}, "has the reward '1'"),
        ({"reward": {"acc": 1.0}}, "has the reward {'acc': 1.0}"),
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=r"^sample 41 ") as caught:
        batch_of(ARGS, [sample(40), sample(41, **fields), sample(42)])
    assert reason in str(caught.value)


def test_a_dict_reward_without_the_key_is_named() -> None:
    with pytest.raises(UserError, match=r"^sample 0 has the reward \{'acc': 1.0\}"):
        batch_of(default_args(reward_key="score"), [sample(reward={"acc": 1.0})])


def test_samples_without_an_index_and_no_samples_at_all_are_errors() -> None:
    with pytest.raises(UserError, match=r"a sample has no index.*why\?"):
        batch_of(ARGS, [sample(None, prompt="why?")])
    with pytest.raises(UserError, match="the rollout has no samples"):
        batch_of(ARGS, [])


def test_metrics_are_means_over_samples() -> None:
    short = sample(1, tokens=[1, 3], response_length=1, reward=1.0, status=Sample.Status.TRUNCATED)
    batch = batch_of(ARGS, [sample(0, loss_mask=[1, 0, 1]), short])
    metrics = {
        "rollout/reward": 0.5,
        "rollout/reward_std": 0.5,
        "rollout/response_length": 2.0,
        "rollout/trainable_length": 1.5,
        "rollout/prompt_length": 1.5,
        "rollout/truncated": 0.5,
        "rollout/num_samples": 2.0,
    }
    assert rollout_metrics(batch, [0.0, 1.0]) == metrics
    assert set(metrics) - set(rollout_metrics(batch, [])) == {"rollout/reward", "rollout/reward_std"}


@pytest.mark.parametrize(
    "name", ["multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts", "teacher_log_probs"]
)
def test_what_training_would_ignore_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"^sample 1 has {name}, which has no use here"):
        batch_of(ARGS, [sample(0), sample(1, **{name: {"a": 1}})])


def test_the_sets_that_tokens_were_sampled_from_become_columns() -> None:
    sets = {"rollout_top_p_token_ids": [3, 9, 4, 5, 6], "rollout_top_p_token_offsets": [0, 2, 3, 5]}
    batch = batch_of(ARGS, [sample(0, **sets), sample(1, **sets)])
    assert batch.top_p_token_ids is not None
    assert batch.top_p_offsets is not None
    assert (batch.top_p_token_ids.tolist(), batch.top_p_offsets.tolist()) == ([3, 9, 4, 5, 6] * 2, [0, 2, 3, 5, 7, 8, 10])
    with pytest.raises(UserError, match=r"^sample 1 has no rollout_top_p_token_ids, which other samples"):
        batch_of(ARGS, [sample(0, **sets), sample(1)])
    with pytest.raises(UserError, match=r"^sample 0: rollout_top_p_token_offsets must have 4 entries, the last .* 5$"):
        batch_of(ARGS, [sample(0, **{**sets, "rollout_top_p_token_offsets": [0, 2, 5]})])
