"""Golden cases as the objective functions see them: trainable tokens only."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.golden import Case


def trainable_only(case: Case) -> Case:
    """The case without what stands at masked tokens, in inputs and outputs alike; a fully masked sample keeps an empty row."""
    masks = case.inputs["loss_masks"]

    def kept(numbers: Any) -> Any:
        if not isinstance(numbers, list) or not isinstance(numbers[0], list):
            return numbers
        return [[number for number, one in zip(*row, strict=True) if one] for row in zip(numbers, masks, strict=True)]

    return replace(
        case,
        inputs={field: kept(numbers) for field, numbers in case.inputs.items()},
        outputs={field: kept(numbers) for field, numbers in case.outputs.items()},
    )


def sample_of(case: Case, field: str) -> Tensor:
    """[R] which sample each token of a ragged input belongs to."""
    lengths = case.offsets(field).diff()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)
