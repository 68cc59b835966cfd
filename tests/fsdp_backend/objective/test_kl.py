"""KL estimates and their gradients against golden numbers, and what remains of them where exp overflows."""

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.kl import approx_kl
from tests.golden import Case, cases, each_dtype


def estimate(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The case's KL estimates and the gradient of their sum by the log-probs."""
    log_probs = case.tensor("log_probs", dtype).requires_grad_()
    log_ratio = log_probs - case.tensor("old_log_probs", dtype) if case.params.get("use_unbiased_kl") else None
    kl = approx_kl(log_probs, case.tensor("ref_log_probs", dtype), case.params["kl_loss_type"], log_ratio)
    (gradient,) = torch.autograd.grad(kl.sum(), log_probs)
    return kl, gradient


@each_dtype
@pytest.mark.parametrize("case", cases("05_kl"), ids=str)
def test_each_estimator_has_its_published_value(case: Case, dtype: torch.dtype) -> None:
    kl, _ = estimate(case, dtype)
    case.assert_close("kl", kl)
    assert kl.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", [case for case in cases("05_kl") if "grad_log_probs" in case.outputs], ids=str)
def test_the_gradient_flows_through_the_estimate_and_the_importance_ratio(case: Case, dtype: torch.dtype) -> None:
    _, gradient = estimate(case, dtype)
    case.assert_close("grad_log_probs", gradient)


@each_dtype
@pytest.mark.parametrize("case", [case for case in cases("05_kl") if case.name == "overflow_low_var_kl"], ids=str)
def test_low_var_kl_has_zero_gradient_and_not_nan_where_exp_overflows(case: Case, dtype: torch.dtype) -> None:
    _, gradient = estimate(case, dtype)
    case.assert_close("grad_log_probs", gradient, "miles")


def test_low_var_kl_with_an_importance_ratio_stays_finite_where_exp_overflows() -> None:
    log_probs = torch.tensor([-1000.0, -100.0, -5.0], requires_grad=True)
    kl = approx_kl(log_probs, torch.full((3,), -5.0), "low_var_kl", log_probs - log_probs.detach() + 20)
    (gradient,) = torch.autograd.grad(kl.sum(), log_probs)
    assert kl.tolist() == [10.0, 10.0, 0.0]
    assert gradient.isfinite().all()


def test_only_low_var_kl_is_bounded() -> None:
    difference = torch.tensor([-100.0, 100.0], dtype=torch.float64)
    want = {
        "k1": difference,
        "k2": difference.square() / 2,
        "k3": torch.exp(-difference) - 1 + difference,
        "low_var_kl": torch.tensor([10.0, 10.0], dtype=torch.float64),
    }
    got = {kl_loss_type: approx_kl(difference, torch.zeros_like(difference), kl_loss_type) for kl_loss_type in want}
    torch.testing.assert_close(got, want)


def test_an_unknown_estimator_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kl_loss_type must be k1, k2, k3 or low_var_kl, got 'k4'"):
        approx_kl(torch.zeros(1), torch.zeros(1), "k4")
