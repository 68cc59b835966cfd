"""Probability ratios, and the mean over a sample's tokens against golden numbers and finite differences."""

import math

import pytest
import torch

from fsdp_backend.objective.ratio import probability_ratio, sequence_mean
from tests.fsdp_backend.objective.trainable import sample_of, trainable_only
from tests.golden import Case, cases, each_dtype


@each_dtype
def test_the_ratio_is_the_exponential_of_a_log_ratio_of_at_most_twenty(dtype: torch.dtype) -> None:
    log_ratio = torch.tensor([-math.inf, -100, -20, -0.5, 0, 3, 20, 100, math.inf], dtype=dtype, requires_grad=True)
    ratio = probability_ratio(log_ratio)
    (gradient,) = torch.autograd.grad(ratio.sum(), log_ratio)
    torch.testing.assert_close(ratio, torch.tensor([-20, -20, -20, -0.5, 0, 3, 20, 20, 20], dtype=dtype).exp())
    torch.testing.assert_close(gradient[3:6], ratio[3:6])
    assert not gradient[log_ratio.abs() > 20].any()


@each_dtype
@pytest.mark.parametrize("case", [trainable_only(case) for case in cases("04_gspo")], ids=str)
def test_every_token_gets_the_mean_over_the_trainable_tokens_of_its_sample(case: Case, dtype: torch.dtype) -> None:
    lengths = [len(row) for row in case.inputs["log_probs"]]
    sample = sample_of(case, "log_probs")
    mean = sequence_mean(case.tensor("old_log_probs", dtype) - case.tensor("log_probs", dtype), lengths)
    per_sample = torch.zeros(len(lengths), dtype=dtype).scatter(0, sample, mean)
    case.assert_close("seq_kl", per_sample)
    assert torch.equal(mean, per_sample[sample])
    assert mean.dtype == dtype


@pytest.mark.parametrize("lengths", [[6], [2, 1, 3], [2, 0, 4, 0]])
def test_the_gradient_of_the_mean_reaches_all_tokens_of_a_sample(lengths: list[int]) -> None:
    per_token = torch.linspace(-1, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sequence_mean(x, lengths), per_token)
    (gradient,) = torch.autograd.grad(sequence_mean(per_token, lengths)[0], per_token)
    same = torch.arange(6) < lengths[0]
    torch.testing.assert_close(gradient, same / same.sum(dtype=torch.float64))


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_the_mean_of_no_tokens_is_empty(lengths: list[int]) -> None:
    assert sequence_mean(torch.zeros(0), lengths).shape == (0,)
