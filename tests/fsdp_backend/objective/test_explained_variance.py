"""Explained variance against golden numbers, which say NaN where there is nothing to explain."""

import pytest
import torch

from fsdp_backend.objective.explained_variance import explained_variance
from tests.golden import Case, cases, each_dtype


@each_dtype
@pytest.mark.parametrize("case", cases("14_explained_variance"), ids=str)
def test_explained_variance_is_over_trainable_tokens_and_nan_when_undefined(case: Case, dtype: torch.dtype) -> None:
    explained = explained_variance(
        case.tensor("values", dtype), case.tensor("returns", dtype), case.tensor("loss_masks", torch.int64)
    )
    case.assert_close("explained_variance", torch.tensor(explained, dtype=dtype))
