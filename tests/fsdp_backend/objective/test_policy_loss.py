"""The policy losses, their clip fractions and their gradients, against golden numbers and finite differences."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.policy_loss import cispo_loss, double_sided_loss, policy_loss
from fsdp_backend.objective.ratio import sequence_mean
from tests.fsdp_backend.objective.trainable import sample_of, trainable_only
from tests.golden import Case, cases, each_dtype

EXTREME = [case for case in cases("03_policy_loss") if case.name.startswith("extreme")]
DOUBLE_SIDED = [case for case in cases("07_importance") if case.params["kind"] == "sao"]


@each_dtype
@pytest.mark.parametrize("case", cases("03_policy_loss"), ids=str)
def test_loss_clip_fraction_and_gradient_are_those_of_clipped_ppo(case: Case, dtype: torch.dtype) -> None:
    log_probs = case.tensor("log_probs", dtype).requires_grad_()
    log_ratio = log_probs - case.tensor("old_log_probs", dtype)
    loss, clipped = policy_loss(log_ratio, case.tensor("advantages", dtype), **case.params)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    case.assert_close("pg_loss", loss)
    case.assert_equal("clipfrac", clipped)
    (gradient_field,) = [field for field in case.outputs if field.startswith("grad_log_probs")]
    case.assert_close(gradient_field, gradient)
    assert loss.dtype == clipped.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", EXTREME, ids=str)
def test_extreme_log_ratios_give_finite_losses_and_gradients(case: Case, dtype: torch.dtype) -> None:
    log_probs = case.tensor("log_probs", dtype).requires_grad_()
    log_ratio = log_probs - case.tensor("old_log_probs", dtype)
    loss, _ = policy_loss(log_ratio, case.tensor("advantages", dtype), **case.params)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert not gradient[log_ratio.abs() > 20].any()


@pytest.mark.parametrize("case", EXTREME, ids=str)
def test_log_ratios_count_at_most_twenty(case: Case) -> None:
    log_ratio = case.tensor("log_probs", torch.float64) - case.tensor("old_log_probs", torch.float64)
    loss, _ = policy_loss(log_ratio, case.tensor("advantages", torch.float64), **case.params)
    case.assert_close("pg_loss", loss, "verl_clamps_log_ratio_to_20")


@pytest.mark.parametrize("eps_clip_c", [None, 1.5])
def test_gradient_agrees_with_finite_differences(eps_clip_c: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs, old_log_probs, advantages = torch.randn(3, 40, generator=generator, dtype=torch.float64)

    def loss(current: Tensor) -> Tensor:
        return policy_loss(current - old_log_probs, advantages, 0.2, 0.3, eps_clip_c)[0]

    assert torch.autograd.gradcheck(loss, log_probs.clone().requires_grad_())


@each_dtype
@pytest.mark.parametrize("case", [trainable_only(case) for case in cases("04_gspo")], ids=str)
def test_of_a_sequence_mean_the_policy_loss_is_gspo(case: Case, dtype: torch.dtype) -> None:
    log_probs, sample = case.tensor("log_probs", dtype).requires_grad_(), sample_of(case, "log_probs")
    log_ratio = sequence_mean(log_probs - case.tensor("old_log_probs", dtype), [len(row) for row in case.inputs["log_probs"]])
    loss, clipped = policy_loss(log_ratio, case.tensor("advantages", dtype), **case.params)
    total = (loss / sample.bincount()[sample]).sum()
    (gradient,) = torch.autograd.grad(total, log_probs)
    case.assert_close("pg_loss", loss)
    case.assert_equal("clipfrac", clipped)
    case.assert_close("sum_of_sample_means", total)
    case.assert_close("grad_log_probs", gradient)


@each_dtype
@pytest.mark.parametrize("case", cases("04_cispo"), ids=str)
def test_cispo_clips_the_weight_of_a_token_and_keeps_its_gradient(case: Case, dtype: torch.dtype) -> None:
    log_probs = case.tensor("log_probs", dtype).requires_grad_()
    log_ratio = log_probs - case.tensor("old_log_probs", dtype)
    loss, clipped = cispo_loss(log_ratio, log_probs, case.tensor("advantages", dtype), **case.params)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    case.assert_close("pg_loss", loss)
    case.assert_equal("clipfrac", clipped)
    case.assert_close("grad_log_probs", gradient)
    assert loss.dtype == clipped.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", cases("04_cispo"), ids=str)
def test_the_weight_of_cispo_is_the_clipped_ratio(case: Case, dtype: torch.dtype) -> None:
    log_ratio = case.tensor("log_probs", dtype) - case.tensor("old_log_probs", dtype)
    one = torch.ones_like(log_ratio)
    case.assert_close("weight", -cispo_loss(log_ratio, one, one, **case.params)[0])


def double_sided(case: Case, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    return double_sided_loss(log_ratio, advantages, case.params["eps_low"], case.params["eps_high"])


@each_dtype
@pytest.mark.parametrize("case", DOUBLE_SIDED, ids=str)
def test_double_sided_masks_every_ratio_on_or_past_a_bound(case: Case, dtype: torch.dtype) -> None:
    log_ratio = case.tensor("log_probs", dtype) - case.tensor("rollout_log_probs", dtype)
    advantages = case.tensor("advantages", dtype)
    loss, masked = double_sided(case, log_ratio, advantages)
    case.assert_close("loss_ratio_form", loss)
    case.assert_equal("keep", 1 - masked)
    case.assert_close("weight", double_sided(case, log_ratio, -torch.ones_like(advantages))[0])
    assert loss.dtype == masked.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", DOUBLE_SIDED, ids=str)
def test_double_sided_has_the_gradient_of_the_log_prob_form(case: Case, dtype: torch.dtype) -> None:
    log_probs, advantages = case.tensor("log_probs", dtype).requires_grad_(), case.tensor("advantages", dtype)
    log_ratio = log_probs - case.tensor("rollout_log_probs", dtype)
    (gradient,) = torch.autograd.grad(double_sided(case, log_ratio, advantages)[0].sum(), log_probs)
    weight, _ = double_sided(case, log_ratio.detach(), -torch.ones_like(advantages))
    log_prob_form = -weight * advantages * log_probs
    (gradient_of_log_prob_form,) = torch.autograd.grad(log_prob_form.sum(), log_probs)
    case.assert_close("loss_log_prob_form", log_prob_form)
    case.assert_close("grad_log_probs", gradient)
    case.assert_close("grad_log_probs", gradient_of_log_prob_form)


def test_the_gradient_of_double_sided_agrees_with_finite_differences_off_the_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    log_ratio, advantages = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    log_ratio[:2] = torch.tensor([-100, 100])
    bounds = torch.tensor([[0.6], [1.9]], dtype=torch.float64).log()
    assert (log_ratio - bounds).abs().min() > 1e-3
    masked = double_sided_loss(log_ratio, advantages, 0.4, 0.9)[1]
    assert 0 < masked.mean() < 1
    assert torch.autograd.gradcheck(lambda x: double_sided_loss(x, advantages, 0.4, 0.9)[0], log_ratio.requires_grad_())


def gspo(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """Each of these tokens in a sample with a moderate one."""
    pairs = torch.stack([log_ratio, torch.full_like(log_ratio, 0.5)], 1).flatten()
    return policy_loss(sequence_mean(pairs, [2] * len(log_ratio)), advantages.repeat_interleave(2), 0.2, 0.3, 3.0)[0]


EXTREME_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ppo": lambda log_ratio, log_probs, advantages: policy_loss(log_ratio, advantages, 0.2, 0.3)[0],
    "dual_clip": lambda log_ratio, log_probs, advantages: policy_loss(log_ratio, advantages, 0.2, 0.3, 3.0)[0],
    "gspo": lambda log_ratio, log_probs, advantages: gspo(log_ratio, advantages),
    "cispo": lambda log_ratio, log_probs, advantages: cispo_loss(log_ratio, log_probs, advantages, 0.2, 0.3)[0],
    "cispo_unbounded": lambda log_ratio, log_probs, advantages: cispo_loss(log_ratio, log_probs, advantages, 1, math.inf)[0],
    "double_sided": lambda log_ratio, log_probs, advantages: double_sided_loss(log_ratio, advantages, 0.3, 5.0)[0],
}


@pytest.mark.parametrize("name", EXTREME_LOSSES)
def test_losses_and_gradients_are_finite_whatever_the_log_ratio(name: str) -> None:
    extremes = torch.tensor([-math.inf, -1e30, -100, -88, 0, 88, 100, 1e30, math.inf], dtype=torch.float32)
    advantages = torch.tensor([-2.0, 0.0, 2.0]).repeat_interleave(len(extremes))
    log_probs = torch.full_like(advantages, -1).requires_grad_()
    loss = EXTREME_LOSSES[name](log_probs - (-1 - extremes).repeat(3), log_probs, advantages)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
