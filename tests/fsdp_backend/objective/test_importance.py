"""Importance weights and the off-policy sequence mask against golden numbers, at their bounds and beyond."""

import math

import pytest
import torch
from torch import Tensor

from fsdp_backend.objective.importance import importance_weights, off_policy_sequence_mask
from fsdp_backend.objective.ratio import sequence_mean
from tests.fsdp_backend.objective.trainable import trainable_only
from tests.golden import Case, cases, each_dtype

WEIGHTS = [case for case in cases("07_importance") if case.params["kind"] in ("tis", "icepop")]
SEQUENCE_MASKS = [trainable_only(case) for case in cases("07_importance") if case.params["kind"] == "opsm"]


def weights_of(case: Case, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    mode, low, high = case.params["kind"], case.params["tis_clip_low"], case.params["tis_clip"]
    log_probs, rollout_log_probs = case.tensor("train_log_probs", dtype), case.tensor("rollout_log_probs", dtype)
    return importance_weights(log_probs, rollout_log_probs, "truncate" if mode == "tis" else mode, low, high)


@each_dtype
@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_truncation_clamps_the_ratio_and_icepop_drops_it_outside_a_closed_interval(case: Case, dtype: torch.dtype) -> None:
    weights, _ = weights_of(case, dtype)
    case.assert_close("weight", weights)
    case.assert_close("pg_loss", weights * case.tensor("pg_loss", dtype))
    assert weights.dtype == dtype


@each_dtype
@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_the_metrics_are_of_the_ratio_before_it_is_clipped(case: Case, dtype: torch.dtype) -> None:
    _, metrics = weights_of(case, dtype)
    case.assert_close("ratio", metrics["tis"])
    case.assert_equal("clipfrac", metrics["tis_clipfrac"])
    case.assert_close("abs", metrics["tis_abs"])
    assert {metric.dtype for metric in metrics.values()} == {dtype}


@pytest.mark.parametrize("mode", ["truncate", "icepop"])
def test_weights_are_finite_whatever_the_log_ratio(mode: str) -> None:
    log_ratio = torch.tensor([-math.inf, -1e30, -100.0, 0.0, 100.0, 1e30, math.inf])
    weights, metrics = importance_weights(log_ratio, torch.zeros(7), mode, 0.5, 2.0)  # type: ignore[arg-type]
    low, high = (0.5, 2.0) if mode == "truncate" else (0.0, 0.0)
    assert weights.tolist() == [low, low, low, 1.0, high, high, high]
    assert all(metric.isfinite().all() for metric in metrics.values())
    assert metrics["tis_clipfrac"].tolist() == [1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("mode", ["truncate", "icepop"])
def test_no_gradient_flows_through_the_weights(mode: str) -> None:
    log_probs = torch.tensor([-1.0, -0.5], requires_grad=True)
    weights, metrics = importance_weights(log_probs, torch.tensor([-0.8, -0.9]), mode, 0.5, 2.0)  # type: ignore[arg-type]
    assert not any(number.requires_grad for number in (weights, *metrics.values()))


@each_dtype
@pytest.mark.parametrize("case", SEQUENCE_MASKS, ids=str)
def test_tokens_of_negative_advantage_in_an_improbable_sample_are_masked(case: Case, dtype: torch.dtype) -> None:
    log_ratio = case.tensor("log_probs", dtype) - case.tensor("old_log_probs", dtype)
    mean = sequence_mean(log_ratio, [len(row) for row in case.inputs["log_probs"]])
    mask = off_policy_sequence_mask(mean, case.tensor("advantages", dtype), case.params["opsm_delta"])
    case.assert_equal("opsm_mask", mask)
    assert mask.dtype == dtype


def test_a_sample_at_delta_and_an_advantage_of_zero_are_not_masked() -> None:
    log_ratio, advantages = torch.tensor([-0.25, -0.5, -0.5, 0.5]), torch.tensor([-1.0, -1.0, 0.0, -1.0])
    assert off_policy_sequence_mask(log_ratio, advantages, 0.25).tolist() == [1.0, 0.0, 1.0, 1.0]
