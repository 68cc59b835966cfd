"""A correction of one's own, as slime calls it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack, pack
from fsdp_backend.training.actor_loss import Correction, Metrics, actor_loss
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.plugins import custom_correction
from tests.slime.backends.fsdp_utils import corrections
from tests.slime.rollout.runs import config
from tests.tiny import random_batch, save_tiny_model

CORRECTIONS = corrections.__name__
CPU = torch.device("cpu")
# Packed as 2, 1, 0, the trainable response tokens stand at 1, 2 of sample 2, nowhere in sample 1, and at 0, 2 of sample 0.
BATCH = RolloutBatch.from_samples(
    [[5, 6, 1, 2, 3], [5, 6, 7, 1, 2], [5, 1, 2, 3, 4]], [3, 2, 4], [[1, 0, 1], [0, 0], [0, 1, 1, 0]], [0.0, 0.0, 0.0]
)
PACK = pack(BATCH, (2, 1, 0), CPU)
LOSS, OLD, ROLLOUT = torch.tensor([10.0, 20, 30, 40]), torch.tensor([-1.0, -2, -3, -4]), torch.tensor([-5.0, -6, -7, -8])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("plugins") / "model")


def run_config(model: Path, name: str, *flags: str) -> RunConfig:
    return config(model, "prompts.jsonl", "--use-tis", "--custom-tis-function-path", f"{CORRECTIONS}.{name}", *flags)


def correction(model: Path, name: str, *flags: str) -> Correction:
    made = custom_correction(run_config(model, name, *flags))
    assert made is not None
    return made


def corrected(made: Correction, loss: Tensor, packed: Pack = PACK) -> tuple[Tensor, Tensor, Metrics]:
    """What a correction makes of a loss, its mask and its metrics."""
    old, rollout = (column[: len(loss)] for column in (OLD, ROLLOUT))
    answer, kept, metrics = made(loss, log_probs=old, rollout_log_probs=rollout, pack=packed, batch=BATCH)
    assert kept is not None
    return answer, kept, metrics


def lists(tensors: list[Tensor]) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


def test_without_a_path_there_is_no_correction_of_ones_own(model: Path) -> None:
    assert custom_correction(config(model, "prompts.jsonl", "--use-tis")) is None


def test_the_function_gets_whole_responses_sample_by_sample_by_slimes_names(model: Path) -> None:
    corrections.calls.clear()
    loss, kept, metrics = corrected(correction(model, "records", "--tis-clip", "3"), LOSS)
    ((args,), given) = corrections.calls.pop()
    assert (args.tis_clip, args.use_tis, args.hf_checkpoint) == (3.0, True, str(model))
    assert given.pop("pg_loss").tolist() == [0, 10, 20, 0, 0, 0, 30, 0, 40]
    assert lists(given.pop("train_log_probs")) == [[0, -1, -2, 0], [0, 0], [-3, 0, -4]]
    assert lists(given.pop("rollout_log_probs")) == [[0, -5, -6, 0], [0, 0], [-7, 0, -8]]
    assert lists(given.pop("loss_masks")) == [[0, 1, 1, 0], [0, 0], [1, 0, 1]]
    assert given == {"total_lengths": [5, 5, 5], "response_lengths": [4, 2, 3]}
    assert (loss.tolist(), kept.tolist(), metrics) == (LOSS.tolist(), [1, 1, 1, 1], {})


def test_weights_masks_and_metrics_act_on_the_tokens_they_were_made_for(model: Path) -> None:
    trained = LOSS.clone().requires_grad_()
    loss, kept, metrics = corrected(correction(model, "numbered"), trained)
    loss = loss * kept
    assert loss.tolist() == [10 * 1, 20 * 2, 30 * 6, 0]
    assert (list(metrics), metrics["custom_tis/place"].tolist()) == (["custom_tis/place"], [1, 2, 6, 8])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert trained.grad is not None
    assert trained.grad.tolist() == [1, 2, 6, 0]


def test_an_empty_pack_knows_the_metrics_names_and_holds_nothing(model: Path) -> None:
    none = torch.zeros(0, requires_grad=True)
    loss, _, metrics = corrected(correction(model, "vanilla"), none, pack(BATCH, (), CPU))
    assert (loss.shape, loss.requires_grad) == ((0,), True)
    assert {name: len(value) for name, value in metrics.items()} == {
        "custom_tis/tis": 0,
        "custom_tis/tis_clipfrac": 0,
        "custom_tis/tis_abs": 0,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short_loss", "8 entries of the loss for 9 response tokens"),
        ("missing_mask", "5 entries of masks for 9 response tokens"),
        ("averaged_metric", "1 entries of mean for 9 response tokens"),
    ],
)
def test_what_has_another_size_than_the_responses_is_named(model: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^custom_tis_function_path {CORRECTIONS}.{name} returned {message}$"):
        corrected(correction(model, name), LOSS)


@pytest.mark.parametrize("name", ["returns_no_mask", "returns_metrics_in_a_list"])
def test_an_answer_of_another_form_names_the_function(model: Path, name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^custom_tis_function_path {CORRECTIONS}.{name} must return \(loss, list of masks, dict"
    ):
        corrected(correction(model, name), LOSS)


def test_metrics_that_come_and_go_are_refused_since_ranks_would_differ(model: Path) -> None:
    corrections.calls.clear()
    made = correction(model, "reports_now_and_then")
    corrected(made, LOSS)
    with pytest.raises(ValueError, match=r"must report the same metrics every time, got \[\]$"):
        corrected(made, LOSS)


def test_a_mask_that_comes_back_thins_the_whole_loss(model: Path) -> None:
    ppo = run_config(model, "numbered", "--entropy-coef", "1").ppo
    columns = dict.fromkeys(("log_probs", "rollout_log_probs", "advantages"), np.ones(9, dtype=np.float32))
    packed = pack(BATCH, (2, 1, 0), CPU)
    loss, _ = actor_loss(
        ppo, torch.ones(4), torch.ones(4), packed, BATCH.with_columns(**columns), correction(model, "numbered")
    )
    # The last token is masked: neither its advantage nor its entropy counts.
    assert loss.tolist()[3] == 0
    assert 0 not in loss.tolist()[:3]


def test_truncated_importance_sampling_written_as_a_function_is_the_built_in_one_bit_for_bit(model: Path) -> None:
    batch, draw = random_batch(8, masked=True), np.random.default_rng(3)
    names = ("log_probs", "rollout_log_probs", "advantages")
    columns = {name: draw.normal(size=len(batch.loss_mask)).astype(np.float32) for name in names}
    batch, settings = batch.with_columns(**columns), run_config(model, "vanilla", "--tis-clip-low", "0.5")
    packed = pack(batch, (3, 0, 7, 5), CPU)
    outcomes = []
    for own in (None, custom_correction(settings)):
        log_probs = (packed.column(columns["log_probs"]) + 0.1).requires_grad_()
        loss, metrics = actor_loss(settings.ppo, log_probs, torch.zeros_like(log_probs), packed, batch, own)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        outcomes.append((loss, log_probs.grad, {name.removeprefix("custom_tis/"): value for name, value in metrics.items()}))
    (loss, gradient, metrics), (own_loss, own_gradient, own_metrics) = outcomes
    assert gradient is not None
    assert 0 < metrics["tis_clipfrac"].sum() < len(loss)
    assert torch.equal(loss, own_loss)
    assert torch.equal(gradient, own_gradient)  # type: ignore[arg-type]
    assert metrics.keys() == own_metrics.keys()
    assert all(torch.equal(value, own_metrics[name]) for name, value in metrics.items())
