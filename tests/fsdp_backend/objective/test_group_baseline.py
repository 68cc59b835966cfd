"""Rewards normalised within their groups against golden numbers, and where rounding or a lone sample would leave a signal."""

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.group_baseline import group_normalized_rewards
from tests.golden import Case, cases, each_dtype

BY_DEVIATION = ("grpo", "gspo", "cispo")
NORMALIZED = [
    case
    for case in cases("10_reinforce_grpo")
    if case.params.get("rewards_normalization")
    and case.params["advantage_estimator"] in (*BY_DEVIATION, "reinforce_plus_plus_baseline")
]


def group_of(case: Case) -> Tensor:
    """The samples of a prompt are adjacent; a count that does not fit the batch makes one group of all."""
    samples, per_prompt = len(case.inputs["rewards"]), case.params["n_samples_per_prompt"]
    even = samples == per_prompt * case.params["rollout_batch_size"]
    return torch.arange(samples) // (per_prompt if even else samples)


def normalized(case: Case, order: Tensor) -> Tensor:
    """The case's rewards after normalisation in another order of the samples."""
    by_deviation = case.params["advantage_estimator"] in BY_DEVIATION and case.params["grpo_std_normalization"]
    return group_normalized_rewards(case.tensor("rewards", torch.float32)[order], group_of(case)[order], by_deviation)


@pytest.mark.parametrize("case", NORMALIZED, ids=str)
def test_rewards_lose_the_mean_of_their_group_and_are_divided_by_its_unbiased_deviation(case: Case) -> None:
    rewards = normalized(case, torch.arange(len(case.inputs["rewards"])))
    case.assert_close("rewards", rewards)
    assert rewards.dtype == torch.float32


@pytest.mark.parametrize("case", NORMALIZED, ids=str)
def test_the_samples_of_a_group_need_not_be_adjacent(case: Case) -> None:
    order = torch.randperm(len(case.inputs["rewards"]), generator=torch.Generator().manual_seed(0))
    case.assert_close("rewards", normalized(case, order)[order.argsort()])


@pytest.mark.parametrize("by_deviation", [False, True])
def test_group_numbers_are_only_names(by_deviation: bool) -> None:
    rewards, group = torch.tensor([1.0, 0.0, 3.0, 4.0, 5.0]), torch.tensor([0, 1, 0, 1, 1])
    named = torch.tensor([100, -7])[group]
    want = group_normalized_rewards(rewards, group, by_deviation)
    assert torch.equal(group_normalized_rewards(rewards, named, by_deviation), want)


@each_dtype
@pytest.mark.parametrize("by_deviation", [False, True])
def test_equal_rewards_give_exactly_zero(by_deviation: bool, dtype: torch.dtype) -> None:
    rewards = torch.full((31,), 0.9, dtype=dtype)
    rewards[30] = 0.4
    normalized_rewards = group_normalized_rewards(rewards, torch.arange(31) // 30, by_deviation)
    assert normalized_rewards.tolist() == [0.0] * 31


@pytest.mark.parametrize("by_deviation", [False, True])
def test_a_group_of_one_gets_zero(by_deviation: bool) -> None:
    assert group_normalized_rewards(torch.tensor([1.0, -3.0]), torch.tensor([0, 1]), by_deviation).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("by_deviation", [False, True])
def test_no_samples_have_no_rewards(by_deviation: bool) -> None:
    assert group_normalized_rewards(torch.zeros(0), torch.zeros(0, dtype=torch.int64), by_deviation).shape == (0,)
