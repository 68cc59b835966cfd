"""The actor's loss of a whole step, from logits, against golden numbers."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.normaliser import token_weights
from fsdp_backend.batch.packing import pack
from fsdp_backend.batch.plan import Step
from fsdp_backend.config import PPOConfig
from fsdp_backend.model.logprob_head import LogProbHead
from fsdp_backend.training.actor_loss import actor_loss
from tests.golden import Case, cases, each_dtype

EXTREMES = [100.0, -100.0, 88.8, -88.8, 0.3, 0.0]


def ppo_of(case: Case) -> PPOConfig:
    known = {field.name for field in fields(PPOConfig)}
    settings: dict[str, Any] = {name: value for name, value in case.params.items() if name in known}
    importance = case.params["importance"]
    return PPOConfig(
        **settings,
        use_kl_loss=case.params["kl_loss_coef"] != 0,
        use_tis=importance is not None,
        tis_mode="icepop" if importance == "icepop" else "truncate",
    )


def batch_of(case: Case) -> RolloutBatch:
    masks = case.inputs["loss_masks"]
    tokens, lengths = case.inputs["tokens"], case.inputs["response_lengths"]
    batch = RolloutBatch.from_samples(tokens, lengths, masks, [0.0] * len(masks), rollout_index=case.inputs["rollout_ids"])
    columns = ("advantages", "log_probs", "rollout_log_probs", "ref_log_probs")
    return batch.with_columns(**{name: case.tensor(name, torch.float64).numpy() for name in columns})


def step_sums(case: Case, logits: Tensor) -> dict[str, Tensor]:
    """Loss and metrics as the golden ones are: not yet divided by the rollouts, or tokens, of the step."""
    batch, ppo = batch_of(case), ppo_of(case)
    packed = pack(batch, tuple(range(len(batch))), logits.device)
    head = LogProbHead(logits.shape[1], logits.shape[1], bias=False, dtype=logits.dtype)
    head.weight.data = torch.eye(logits.shape[1], dtype=logits.dtype)
    at = logits[packed.predict_positions]
    log_probs, entropy = head(at, packed.targets, case.params["rollout_temperature"], ppo.entropy_coef != 0)
    _, metrics = actor_loss(ppo, log_probs, entropy, packed, batch)
    step = Step(((tuple(range(len(batch))),),))
    weights = packed.column(token_weights(batch, step, ppo.calculate_per_token_loss))
    per_token = ppo.calculate_per_token_loss
    denominator = int(batch.trainable_lengths.sum()) if per_token else len(set(case.inputs["rollout_ids"]))
    return {name: (value * weights).sum() * denominator for name, value in metrics.items()}


@each_dtype
@pytest.mark.parametrize("case", cases("16_policy_loss_full"), ids=str)
def test_the_loss_of_a_step_and_its_gradient_by_the_logits_are_the_golden_ones(case: Case, dtype: torch.dtype) -> None:
    logits = torch.tensor(case.inputs["logits"], dtype=dtype, requires_grad=True)
    loss = step_sums(case, logits)["loss"]
    (gradient,) = torch.autograd.grad(loss, logits)
    case.assert_close("loss", loss.float())
    case.assert_close("grad_logits", gradient.float())


@each_dtype
@pytest.mark.parametrize("case", cases("16_policy_loss_full"), ids=str)
def test_the_metrics_of_a_step_are_weighted_like_its_loss(case: Case, dtype: torch.dtype) -> None:
    golden = replace(case, outputs=case.outputs["metrics_float32"])
    metrics = step_sums(case, torch.tensor(case.inputs["logits"], dtype=dtype))
    metrics["entropy_loss"] = metrics.pop("entropy")
    assert metrics.keys() == golden.outputs.keys()
    for name, metric in metrics.items():
        golden.assert_close(name, metric.float())


WAYS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dual clip": {"eps_clip_c": 3.0},
    "gspo": {"advantage_estimator": "gspo"},
    "cispo": {"advantage_estimator": "cispo"},
    "double-sided mask": {"use_rollout_logprobs": True, "dis_eps_low": 0.3, "dis_eps_high": 5.0},
    "truncated importance": {"use_tis": True},
    "icepop": {"use_tis": True, "tis_mode": "icepop", "tis_clip_low": 0.5},
    "sequence mask": {"use_opsm": True},
    "unbiased KL": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl", "use_unbiased_kl": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gradients_stay_finite_at_extreme_ratios(way: str, advantage: float) -> None:
    n = len(EXTREMES)
    batch = RolloutBatch.from_samples([[0] * (n + 1)] * 2, [n] * 2, [[1] * n] * 2, [0.0] * 2)
    now = torch.full((2 * n,), -1.0, requires_grad=True)
    other = np.array([*EXTREMES, *EXTREMES[::-1]], dtype=np.float32) - 1
    batch = batch.with_columns(
        log_probs=other, rollout_log_probs=-other, ref_log_probs=other, advantages=np.full(2 * n, advantage, dtype=np.float32)
    )
    packed = pack(batch, (0, 1), torch.device("cpu"))
    loss, metrics = actor_loss(PPOConfig(**WAYS[way]), now, torch.zeros(2 * n), packed, batch)
    (gradient,) = torch.autograd.grad(loss.sum(), now)
    assert gradient.isfinite().all()
    assert all(metric.isfinite().all() for metric in metrics.values())


def test_the_double_sided_mask_is_of_the_ratio_to_the_rollout_policy() -> None:
    ratios = [0.69, 0.71, 1.0, 5.9, 6.1]
    batch = RolloutBatch.from_samples([[0] * 6], [5], [[1] * 5], [0.0])
    sampled = -np.log(np.array(ratios, dtype=np.float32))
    batch = batch.with_columns(log_probs=sampled, rollout_log_probs=sampled, advantages=np.ones(5, dtype=np.float32))
    ppo = PPOConfig(use_rollout_logprobs=True, dis_eps_low=0.3, dis_eps_high=5.0)
    now = torch.zeros(5, requires_grad=True)
    loss, metrics = actor_loss(ppo, now, torch.zeros(5), pack(batch, (0,), torch.device("cpu")), batch)
    (gradient,) = torch.autograd.grad(loss.sum(), now)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.71, -1.0, -5.9, 0.0]))
    assert metrics["pg_clipfrac"].tolist() == [1, 0, 0, 0, 1]
