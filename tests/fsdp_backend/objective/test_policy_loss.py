"""The clipped policy loss, its clip fraction and its gradient, against golden numbers and finite differences."""

import pytest
import torch

from fsdp_backend.objective.policy_loss import policy_loss
from tests.golden import Case, cases, each_dtype

EXTREME = [case for case in cases("03_policy_loss") if case.name.startswith("extreme")]


@each_dtype
@pytest.mark.parametrize("case", cases("03_policy_loss"), ids=str)
def test_loss_clip_fraction_and_gradient_are_those_of_clipped_ppo(case: Case, dtype: torch.dtype) -> None:
    log_probs = case.tensor("log_probs", dtype).requires_grad_()
    loss, clipped = policy_loss(log_probs, case.tensor("old_log_probs", dtype), case.tensor("advantages", dtype), **case.params)
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
    loss, _ = policy_loss(log_probs, case.tensor("old_log_probs", dtype), case.tensor("advantages", dtype), **case.params)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert not gradient[log_probs.abs() > 20].any()


@pytest.mark.parametrize("case", EXTREME, ids=str)
def test_log_ratios_count_at_most_twenty(case: Case) -> None:
    log_probs, old_log_probs = case.tensor("log_probs", torch.float64), case.tensor("old_log_probs", torch.float64)
    loss, _ = policy_loss(log_probs, old_log_probs, case.tensor("advantages", torch.float64), **case.params)
    case.assert_close("pg_loss", loss, "verl_clamps_log_ratio_to_20")


@pytest.mark.parametrize("eps_clip_c", [None, 1.5])
def test_gradient_agrees_with_finite_differences(eps_clip_c: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs, old_log_probs, advantages = torch.randn(3, 40, generator=generator, dtype=torch.float64)

    def loss(current: torch.Tensor) -> torch.Tensor:
        return policy_loss(current, old_log_probs, advantages, 0.2, 0.3, eps_clip_c)[0]

    assert torch.autograd.gradcheck(loss, log_probs.clone().requires_grad_())
