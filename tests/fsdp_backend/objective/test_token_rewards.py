"""Token rewards from KL and sample rewards against golden numbers, and the advantages that follow from them."""

import math

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.advantages import gae
from fsdp_backend.objective.kl import approx_kl
from fsdp_backend.objective.token_rewards import token_rewards
from tests.golden import Case, cases, each_dtype

MASK_AWARE = "mask_aware (miles GAE, NeMo-RL placement)"


def convention(case: Case) -> str | None:
    """The golden outputs ignore the mask; only where it masks something is there another set that heeds it."""
    return MASK_AWARE if MASK_AWARE in case.variants else None


def shaped(case: Case, dtype: torch.dtype) -> Tensor:
    kl = approx_kl(case.tensor("log_probs", dtype), case.tensor("ref_log_probs", dtype), case.params["kl_loss_type"])
    mask = case.tensor("loss_masks", torch.int64)
    return token_rewards(case.tensor("rewards", dtype), kl, mask, case.offsets("values"), case.params["kl_coef"])


@each_dtype
@pytest.mark.parametrize("case", cases("11_token_rewards"), ids=str)
def test_kl_is_charged_on_trainable_tokens_and_the_reward_stands_on_the_last_of_them(case: Case, dtype: torch.dtype) -> None:
    assert (convention(case) is None) == bool(case.tensor("loss_masks", torch.bool).all())
    rewards = shaped(case, dtype)
    case.assert_close("token_rewards", rewards, convention(case))
    assert rewards.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", cases("11_token_rewards"), ids=str)
def test_advantages_and_returns_follow_from_the_token_rewards(case: Case, dtype: torch.dtype) -> None:
    values, mask = case.tensor("values", dtype), case.tensor("loss_masks", torch.int64)
    gamma, lambd = case.params["gamma"], case.params["lambd"]
    advantages, returns = gae(values, shaped(case, dtype), mask, case.offsets("values"), gamma, lambd)
    case.assert_close("advantages", advantages, convention(case))
    case.assert_close("returns", returns, convention(case))


@pytest.mark.parametrize("noise", [1e6, math.nan])
def test_the_kl_of_masked_tokens_changes_nothing(noise: float) -> None:
    mask, offsets = torch.tensor([1, 0, 1, 0, 0, 0]), torch.tensor([0, 4, 6])
    kl = torch.where(mask.bool(), 0.5, noise)
    rewards = token_rewards(torch.tensor([1.0, 2.0]), kl, mask, offsets, kl_coef=0.1)
    torch.testing.assert_close(rewards, torch.tensor([-0.05, 0.0, 0.95, 0.0, 0.0, 0.0]))


def test_without_kl_only_the_sample_rewards_remain() -> None:
    mask, offsets = torch.tensor([1, 1, 0, 0, 1]), torch.tensor([0, 3, 3, 5])
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0]), None, mask, offsets, kl_coef=0.1)
    assert rewards.tolist() == [0.0, 1.0, 0.0, 0.0, 3.0]
