"""Token weights, and whole losses made with them, against golden numbers."""

import pytest
import torch

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.normaliser import token_weights
from fsdp_backend.batch.plan import Step
from fsdp_backend.objective.value_loss import value_loss
from tests.golden import Case, cases


def batch_of(case: Case) -> RolloutBatch:
    """The samples of a case; each response follows one prompt token."""
    masks = case.inputs["loss_masks"]
    tokens = [[0] * (len(mask) + 1) for mask in masks]
    return RolloutBatch.from_samples(
        tokens, list(map(len, masks)), masks, [0.0] * len(masks), rollout_index=case.inputs["rollout_ids"]
    )


def whole(batch: RolloutBatch) -> Step:
    """All samples in one step, each a micro-batch."""
    return Step((tuple((i,) for i in range(len(batch))),))


@pytest.mark.parametrize("case", cases("08_aggregation"), ids=str)
@pytest.mark.parametrize(
    ("per_token", "field"), [(False, "token_weight_default"), (True, "token_weight_per_token")], ids=["rollout", "token"]
)
def test_weights_are_those_of_every_cut_into_micro_batches(case: Case, per_token: bool, field: str) -> None:
    batch = batch_of(case)
    for split in case.params["microbatch_splits_that_must_agree"]:
        on_one_rank = Step((tuple(map(tuple, split)),))
        on_a_rank_each = Step(tuple((tuple(micro_batch),) for micro_batch in split))
        for step in (on_one_rank, on_a_rank_each):
            case.assert_close(field, torch.from_numpy(token_weights(batch, step, per_token)))


@pytest.mark.parametrize("case", cases("08_aggregation"), ids=str)
@pytest.mark.parametrize(
    ("per_token", "field"), [(False, "step_loss_default"), (True, "step_loss_per_token")], ids=["rollout", "token"]
)
def test_the_weighted_sum_is_the_loss_of_the_step(case: Case, per_token: bool, field: str) -> None:
    batch = batch_of(case)
    weights = torch.from_numpy(token_weights(batch, whole(batch), per_token))
    case.assert_close(field, (weights * case.tensor("x", torch.float32)).sum())


@pytest.mark.parametrize("per_token", [False, True], ids=["rollout", "token"])
def test_a_step_weighs_its_own_samples_only(per_token: bool) -> None:
    case = next(case for case in cases("08_aggregation") if case.name == "fan_out_siblings")
    batch = batch_of(case)
    part = RolloutBatch.from_samples(
        [[0] * 5, [0] * 7], [4, 6], case.inputs["loss_masks"][:2], [0.0, 0.0], rollout_index=[0, 0]
    )
    weights = token_weights(batch, Step((((1,),), ((0,),))), per_token)
    assert not weights[10:].any()
    assert weights[:10].tolist() == token_weights(part, whole(part), per_token).tolist()


@pytest.mark.parametrize("case", cases("06_value_loss"), ids=str)
def test_the_value_loss_of_a_step_and_its_gradient_are_the_golden_ones(case: Case) -> None:
    values, old_values, returns = (case.tensor(field, torch.float64) for field in ("values", "old_values", "returns"))
    batch = batch_of(case)
    weights = torch.from_numpy(token_weights(batch, whole(batch), case.params["calculate_per_token_loss"])).double()
    loss, _ = value_loss(values.requires_grad_(), old_values, returns, case.params["value_clip"])
    total = (loss * weights).sum()
    (gradient,) = torch.autograd.grad(total * float(case.outputs["step_denominator"]), values)
    # Weights are float32, hence the tolerance of float32.
    case.assert_close("step_value_loss", total.float())
    case.assert_close("grad_values_of_loss_sum", gradient.float())
