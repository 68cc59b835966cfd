"""A loss of one's own, as slime calls it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import pack
from fsdp_backend.state.weight_stream import full_weights
from fsdp_backend.training.actor import Actor, CustomLoss
from fsdp_backend.training.learner import Share
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.custom_loss import custom_loss
from tests.slime.backends.fsdp_utils import losses
from tests.slime.rollout.runs import config
from tests.tiny import random_batch, save_tiny_model
from tests.worlds import run_world

HERE = losses.__name__
CPU = torch.device("cpu")
BATCH = RolloutBatch.from_samples(
    [[5, 6, 1, 2, 3], [5, 6, 7, 1, 2], [5, 1, 2, 3, 4]],
    [3, 2, 4],
    [[1, 0, 1], [0, 0], [0, 1, 1, 0]],
    [0.5, 1.0, -1.0],
    sample_index=[7, 8, 9],
    rollout_index=[3, 4, 4],
).with_columns(advantages=np.arange(9, dtype=np.float32))
SHARE = Share(torch.tensor([0.25, 0.25, 0.125, 0.125]), 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("losses") / "model")


def run_config(model: Path, name: str | None, *flags: str) -> RunConfig:
    own = ["--loss-type", "custom_loss", "--custom-loss-function-path", f"{HERE}.{name}"] if name else []
    return config(model, "prompts.jsonl", *own, *flags)


def loss_of(model: Path, name: str) -> CustomLoss:
    made = custom_loss(run_config(model, name))
    assert made is not None
    return made


def test_the_function_gets_a_micro_batch_by_slimes_keys(model: Path) -> None:
    losses.calls.clear()
    logits = torch.zeros(10, 6, requires_grad=True)
    part, metrics = loss_of(model, "records")(logits, pack(BATCH, (2, 0), CPU), BATCH, SHARE)
    ((args, batch, seen),) = losses.calls
    assert (args.loss_type, tuple(seen.shape)) == ("custom_loss", (1, 10, 6))
    shown = {key: [each.tolist() if isinstance(each, Tensor) else each for each in value] for key, value in batch.items()}
    assert shown == {
        "tokens": [[5, 1, 2, 3, 4, 5, 6, 1, 2, 3]],
        "unconcat_tokens": [[5, 1, 2, 3, 4], [5, 6, 1, 2, 3]],
        "total_lengths": [5, 5],
        "response_lengths": [4, 3],
        "loss_masks": [[0, 1, 1, 0], [1, 0, 1]],
        "rewards": [-1.0, 0.5],
        "truncated": [0, 0],
        "sample_indices": [9, 7],
        "rollout_mask_sums": [2, 2],
        "advantages": [[5, 6, 7, 8], [0, 1, 2]],
    }
    # One of the step's two rollouts has a mean of 1 over its two tokens, the other of 1/2: 3/4 of the whole, in the metric too.
    assert (part.item(), metrics["loss"].item(), metrics["custom_loss/ones"].item()) == (0.75, 0.75, 0.75)


def test_an_empty_micro_batch_is_one_masked_token_and_counts_nothing(model: Path) -> None:
    losses.calls.clear()
    logits = torch.ones(1, 6, requires_grad=True)
    part, metrics = loss_of(model, "records")(logits, pack(BATCH, (), CPU), BATCH, Share(torch.zeros(0), 2))
    ((_, batch, seen),) = losses.calls
    assert (batch["response_lengths"], batch["total_lengths"], tuple(seen.shape)) == ([1], [2], (1, 2, 6))
    assert [mask.tolist() for mask in batch["loss_masks"]] == [[0]]
    assert (part.item(), part.requires_grad, metrics["custom_loss/ones"].item()) == (0, True, 0)


@pytest.mark.parametrize("name", ["returns_a_loss_alone", "returns_a_vector", "reports_a_vector"])
def test_an_answer_of_another_form_names_the_function(model: Path, name: str) -> None:
    logits = torch.zeros(10, 6, requires_grad=True)
    with pytest.raises(ValueError, match=rf"^custom_loss_function_path {HERE}.{name} must return \(scalar, dict of scalars"):
        loss_of(model, name)(logits, pack(BATCH, (2, 0), CPU), BATCH, SHARE)


def test_metrics_that_come_and_go_are_refused_since_ranks_would_differ(model: Path) -> None:
    losses.calls.clear()
    made, logits = loss_of(model, "reports_now_and_then"), torch.zeros(10, 6, requires_grad=True)
    made(logits, pack(BATCH, (2, 0), CPU), BATCH, SHARE)
    with pytest.raises(ValueError, match=r"must report the same metrics every time, got \[\]$"):
        made(logits, pack(BATCH, (2, 0), CPU), BATCH, SHARE)


def updated(mesh: DeviceMesh, settings: RunConfig) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The parameters after two rollouts of two steps with three rollouts each, of one sample or two."""
    actor = Actor(settings.train_config(), mesh, custom_loss=custom_loss(settings))
    for rollout_id in range(2):
        batch = random_batch(8, rollout_id, masked=True)
        batch = batch.with_columns(rollout_index=np.array([0, 1, 1, 2, 3, 4, 4, 5]))
        advantages = np.random.default_rng(rollout_id).normal(size=len(batch.loss_mask)).astype(np.float32)
        batch = batch.with_columns(log_probs=actor.old_log_probs(batch, rollout_id), advantages=advantages)
        metrics = actor.update(batch, rollout_id)
    return dict(full_weights(actor.model)), metrics


COMMON = "--rollout-temperature 0.7 --entropy-coef 0.01 --eps-clip 0.1 --lr 1e-2 --adam-eps 1e-3 --advantage-estimator grpo"
COMMON += " --clip-grad 100 --rollout-batch-size 3 --global-batch-size 3"


@pytest.mark.parametrize("per_token", [False, True])
def test_ppo_written_as_a_function_trains_as_the_built_in_on_any_ranks_and_micro_batches(model: Path, per_token: bool) -> None:
    common = COMMON.split() + ["--calculate-per-token-loss"] * per_token
    want, metrics = run_world(1, updated, run_config(model, None, *common))[0]
    assert metrics["pg_clipfrac"] > 0
    for ranks in (1, 2):
        for cut in (["--micro-batch-size", "1"], ["--micro-batch-size", "4"]):
            got, own = run_world(ranks, updated, run_config(model, "ppo", *common, *cut))[0]
            for name, tensor in want.items():
                torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=2e-6, msg=f"{name} on {ranks} ranks, {cut}")
            for name, reported in (("loss", "loss"), ("pg_loss", "custom_loss/pg_loss"), ("entropy", "custom_loss/entropy")):
                assert own[reported] == pytest.approx(metrics[name], abs=1e-5)


@pytest.mark.parametrize(("rollouts", "ranks", "steps"), [(6, 1, 1), (1, 2, 6)])
def test_a_single_step_has_log_probs_and_an_idle_rank_takes_part(model: Path, rollouts: int, ranks: int, steps: int) -> None:
    common = [*COMMON.split(), "--rollout-batch-size", "6", "--global-batch-size", str(rollouts)]
    (want, _), (got, own) = (run_world(ranks, updated, run_config(model, name, *common))[0] for name in (None, "ppo"))
    assert own["num_steps"] == steps
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=2e-6)


def test_without_the_function_the_actor_refuses_the_loss(model: Path) -> None:
    (message,) = run_world(1, refusal, run_config(model, "ppo"))
    assert message.startswith("loss_type custom_loss needs the function itself")


def refusal(mesh: DeviceMesh, settings: RunConfig) -> str:
    with pytest.raises(ValueError, match="loss_type") as caught:
        Actor(settings.train_config(), mesh)
    return str(caught.value)
