"""The clipped value loss, its clip fraction and its gradient against golden numbers, and the loss without a clip."""

import math

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.value_loss import value_loss
from tests.golden import Case, cases, each_dtype


def token_weights(case: Case, dtype: torch.dtype) -> Tensor:
    """What each token's loss counts in the sum that the golden gradient belongs to."""
    mask = case.tensor("loss_masks", dtype)
    if case.params["calculate_per_token_loss"]:
        return mask
    totals = torch.tensor(case.outputs["rollout_mask_sums"], dtype=dtype).clamp(min=1)
    return mask / totals.repeat_interleave(case.offsets("values").diff())


@each_dtype
@pytest.mark.parametrize("case", cases("06_value_loss"), ids=str)
def test_the_larger_of_clipped_and_free_error_counts(case: Case, dtype: torch.dtype) -> None:
    values, old_values, returns = (case.tensor(field, dtype) for field in ("values", "old_values", "returns"))
    loss, clipped = value_loss(values, old_values, returns, case.params["value_clip"])
    case.assert_close("per_token_loss", loss)
    case.assert_equal("per_token_clipped", clipped)
    assert loss.dtype == clipped.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", cases("06_value_loss"), ids=str)
def test_a_value_past_its_clip_has_a_gradient_only_when_its_free_error_is_larger(case: Case, dtype: torch.dtype) -> None:
    values, old_values, returns = (case.tensor(field, dtype) for field in ("values", "old_values", "returns"))
    loss, _ = value_loss(values.requires_grad_(), old_values, returns, case.params["value_clip"])
    (gradient,) = torch.autograd.grad((loss * token_weights(case, dtype)).sum(), values)
    case.assert_close("grad_values_of_loss_sum", gradient)


@each_dtype
@pytest.mark.parametrize("case", cases("06_value_loss"), ids=str)
def test_without_a_clip_the_loss_is_the_squared_error_whatever_the_old_values(case: Case, dtype: torch.dtype) -> None:
    values, returns = case.tensor("values", dtype).requires_grad_(), case.tensor("returns", dtype)
    loss, clipped = value_loss(values, torch.full_like(returns, math.nan), returns, "none")
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(loss, (values - returns) ** 2)
    torch.testing.assert_close(gradient, 2 * (values - returns))
    assert not clipped.any()
    assert loss.dtype == clipped.dtype == dtype
