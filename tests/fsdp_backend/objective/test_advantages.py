"""Advantages and returns against golden numbers, a plain recursion, and the rule that masked tokens take no part."""

import math
import random

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.advantages import discounted_returns, gae, length_adaptive_lambda, whiten
from fsdp_backend.objective.token_rewards import token_rewards
from tests.golden import Case, cases, each_dtype


def golden_token_rewards(case: Case, dtype: torch.dtype) -> Tensor:
    """The terminal rewards on the last trainable tokens, on top of the case's own token rewards, if any."""
    given = case.tensor("token_rewards", dtype) if "token_rewards" in case.inputs else None
    mask = case.tensor("loss_masks", torch.int64)
    return token_rewards(case.tensor("terminal_rewards", dtype), given, mask, case.offsets("values"), kl_coef=-1.0)


@each_dtype
@pytest.mark.parametrize("case", cases("01_gae"), ids=str)
def test_gae_without_masked_tokens_is_the_plain_recursion(case: Case, dtype: torch.dtype) -> None:
    values, rewards = case.tensor("values", dtype), case.tensor("rewards", dtype)
    advantages, returns = gae(values, rewards, torch.ones(len(values)), case.offsets("values"), **case.params)
    case.assert_close("advantages", advantages)
    case.assert_close("returns", returns)
    assert advantages.dtype == returns.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", cases("02_masked_gae"), ids=str)
def test_gae_skips_masked_tokens_and_gives_them_zero(case: Case, dtype: torch.dtype) -> None:
    mask = case.tensor("loss_masks", torch.int64)
    rewards = golden_token_rewards(case, dtype)
    advantages, returns = gae(case.tensor("values", dtype), rewards, mask, case.offsets("values"), **case.params)
    case.assert_close("advantages", advantages)
    case.assert_close("returns", returns)
    assert not advantages[mask == 0].any()
    assert not returns[mask == 0].any()


@each_dtype
@pytest.mark.parametrize("case", cases("02b_decoupled_gae"), ids=str)
def test_advantages_follow_the_policy_lambda_and_returns_the_critic_lambda(case: Case, dtype: torch.dtype) -> None:
    values, mask, offsets = case.tensor("values", dtype), case.tensor("loss_masks", torch.int64), case.offsets("values")
    rewards, gamma, alpha = golden_token_rewards(case, dtype), case.params["gamma"], case.params["policy_lambda_alpha"]
    policy = case.params["policy_lambda_fixed"] if alpha is None else length_adaptive_lambda(mask, offsets, alpha)
    advantages, _ = gae(values, rewards, mask, offsets, gamma, policy)
    _, returns = gae(values, rewards, mask, offsets, gamma, case.params["critic_lambda"])
    case.assert_close("advantages", advantages)
    case.assert_close("returns", returns)


@pytest.mark.parametrize(
    "case", [case for case in cases("02b_decoupled_gae") if case.params["policy_lambda_alpha"] is not None], ids=str
)
def test_length_adaptive_lambda_counts_trainable_tokens(case: Case) -> None:
    mask = case.tensor("loss_masks", torch.int64)
    adaptive = length_adaptive_lambda(mask, case.offsets("values"), case.params["policy_lambda_alpha"])
    case.assert_close("policy_lambda", adaptive)


def random_ragged(seed: int) -> tuple[list[list[float]], list[list[float]], list[list[int]]]:
    """Values, rewards and masks of samples of 0 to 12 tokens, one of them without a token and one fully masked."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 12) for _ in range(6)] + [0, 5]
    values = [[draw.gauss(0, 1) for _ in range(length)] for length in lengths]
    rewards = [[draw.gauss(0, 1) for _ in range(length)] for length in lengths]
    masks = [[int(draw.random() < 0.6) for _ in range(length)] for length in lengths]
    masks[-1] = [0] * 5
    return values, rewards, masks


def recursion(values: list[float], rewards: list[float], mask: list[int], gamma: float, lambd: float) -> list[float]:
    advantages, following_value, following_advantage = [0.0] * len(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        if mask[t]:
            delta = rewards[t] + gamma * following_value - values[t]
            advantages[t] = delta + gamma * lambd * following_advantage
            following_value, following_advantage = values[t], advantages[t]
    return advantages


def joined(rows: list[list[float]] | list[list[int]]) -> Tensor:
    return torch.tensor([number for row in rows for number in row], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_gae_with_a_lambda_per_sample_equals_the_recursion_written_out(seed: int) -> None:
    values, rewards, masks = random_ragged(seed)
    offsets = torch.tensor([len(row) for row in [[], *values]]).cumsum(0)
    lambdas = torch.linspace(0, 1, len(values), dtype=torch.float64)
    want = joined(
        [recursion(*sample, 0.97, float(lambdas[i])) for i, sample in enumerate(zip(values, rewards, masks, strict=True))]
    )
    advantages, returns = gae(joined(values), joined(rewards), joined(masks), offsets, 0.97, lambdas)
    torch.testing.assert_close(advantages, want)
    torch.testing.assert_close(returns, (want + joined(values)) * joined(masks))


@pytest.mark.parametrize("noise", [1e6, math.nan])
def test_what_stands_at_masked_tokens_changes_nothing(noise: float) -> None:
    values, rewards, masks = random_ragged(seed=7)
    offsets, mask = torch.tensor([len(row) for row in [[], *values]]).cumsum(0), joined(masks)
    clean = gae(joined(values), joined(rewards), mask, offsets, 0.9, 0.8)
    perturbed_values = torch.where(mask.bool(), joined(values), noise)
    perturbed_rewards = torch.where(mask.bool(), joined(rewards), noise)
    perturbed = gae(perturbed_values, perturbed_rewards, mask, offsets, 0.9, 0.8)
    assert torch.equal(perturbed[0], clean[0])
    assert torch.equal(perturbed[1], clean[1])


def test_gae_of_no_samples_is_empty() -> None:
    advantages, returns = gae(torch.zeros(0), torch.zeros(0), torch.zeros(0), torch.tensor([0]), 1.0, 1.0)
    assert advantages.shape == returns.shape == (0,)


@each_dtype
@pytest.mark.parametrize(
    "case", [case for case in cases("10_reinforce_grpo") if case.params["kind"] == "reinforce_plus_plus_returns"], ids=str
)
def test_returns_discount_for_every_token_of_a_response_masked_ones_too(case: Case, dtype: torch.dtype) -> None:
    mask, offsets = case.tensor("loss_masks", torch.int64), case.offsets("loss_masks")
    kl, kl_coef = case.tensor("kl", dtype), case.params["kl_coef"]
    rewards = token_rewards(case.tensor("rewards", dtype), kl, mask, offsets, kl_coef)
    returns = discounted_returns(rewards, offsets, case.params["gamma"])
    case.assert_close("returns", returns)
    assert returns.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", [case for case in cases("09_whitening") if case.params["shift_mean"]], ids=str)
def test_whitening_takes_mean_and_unbiased_variance_over_trainable_tokens(case: Case, dtype: torch.dtype) -> None:
    advantages, mask = case.tensor("advantages", dtype), case.tensor("loss_masks", torch.int64)
    whitened = whiten(advantages, mask, case.params["epsilon"])
    case.assert_close("whitened", whitened)
    assert whitened.dtype == dtype


def test_whitening_stays_finite_without_trainable_tokens() -> None:
    assert whiten(torch.tensor([1.0, -2.0]), torch.zeros(2)).isfinite().all()


@each_dtype
def test_whitening_loses_no_digits_to_a_large_mean(dtype: torch.dtype) -> None:
    advantages = torch.tensor([-1.0, 0.5, 0.125, 2.0, -0.75, 0.25, 1.75], dtype=dtype)
    torch.testing.assert_close(whiten(advantages + 2**20, torch.ones(7)), whiten(advantages, torch.ones(7)))
