"""Numbers that public projects give on random inputs (each file's `source` and `conventions`), and how to compare with them."""

import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@dataclass(frozen=True)
class Case:
    """One golden case. Ragged fields hold one list a sample."""

    name: str
    inputs: dict[str, Any]
    params: dict[str, Any]
    outputs: dict[str, Any]
    """The numbers to reproduce; None is not compared, a string is a float that JSON lacks."""
    exact: dict[str, Any]
    """Outputs again in float64, where the source works in float32."""
    variants: dict[str, Any]
    """Outputs under other conventions."""
    tolerance: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        return self.name

    def tensor(self, field: str, dtype: torch.dtype) -> Tensor:
        """An input, all samples one after another."""
        return torch.tensor(_leaves(self.inputs[field]), dtype=dtype)

    def offsets(self, field: str) -> Tensor:
        """Where the samples of a ragged input begin and end, [n + 1]."""
        return torch.tensor(list(accumulate(map(len, self.inputs[field]), initial=0)))

    def assert_close(self, field: str, got: Tensor, variant: str | None = None) -> None:
        """`got` agrees with the output, within the file's tolerance for the dtype of `got`."""
        outputs = self.outputs | self.exact | (self.variants[variant] if variant else {})
        got_kept, want_kept = _compared(got, outputs[field])
        torch.testing.assert_close(got_kept, want_kept, equal_nan=True, **self._tolerance(field, got.dtype))

    def assert_equal(self, field: str, got: Tensor) -> None:
        """`got` is exactly the output."""
        got_kept, want_kept = _compared(got, self.outputs[field])
        assert got_kept.tolist() == want_kept.tolist()

    def _tolerance(self, field: str, dtype: torch.dtype) -> dict[str, Any]:
        if dtype == torch.float64 and "float64" in self.tolerance:
            return self.tolerance["float64"]
        if dtype == torch.float64 and field in self.exact:
            return self.tolerance["float64_vs_exact"]
        return self.tolerance["float32"]


def cases(topic: str) -> list[Case]:
    """All cases of `<topic>.json`; with `ids=str` a test is named after its case."""
    content = json.loads((Path(__file__).parent / f"{topic}.json").read_text())
    return [
        Case(
            name=case["name"],
            inputs=case["inputs"],
            params=case["params"],
            outputs=case["outputs"],
            exact=case.get("exact_float64", {}),
            variants=case.get("variants", {}),
            tolerance=content["tolerance"],
        )
        for case in content["cases"]
    ]


def _leaves(numbers: Any) -> list[Any]:
    return [leaf for part in numbers for leaf in _leaves(part)] if isinstance(numbers, list) else [numbers]


def _compared(got: Tensor, want: Any) -> tuple[Tensor, Tensor]:
    """Both in float64, without the entries that are None in `want`."""
    wanted = _leaves(want)
    assert got.numel() == len(wanted)
    kept = [i for i, number in enumerate(wanted) if number is not None]
    assert kept
    return got.detach().double().flatten()[kept], torch.tensor([float(wanted[i]) for i in kept], dtype=torch.float64)
