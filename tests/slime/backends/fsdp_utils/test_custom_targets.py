"""Advantages and returns of one's own, as slime calls for them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.backends.fsdp_utils.custom_targets import custom_targets
from tests.slime.backends.fsdp_utils import advantages
from tests.slime.rollout.runs import config
from tests.tiny import save_tiny_model

HERE = advantages.__name__
BATCH = RolloutBatch.from_samples(
    [[5, 6, 1, 2, 3], [5, 6, 7, 1, 2], [5, 1, 2, 3, 4]],
    [3, 2, 4],
    [[1, 0, 1], [0, 0], [0, 1, 1, 0]],
    [0.5, 1.0, -1.0],
    sample_index=[7, 8, 9],
    rollout_index=[3, 4, 4],
    truncated=[False, True, False],
).with_columns(
    raw_reward=np.array([1, 2, 3], dtype=np.float32),
    values=np.arange(9, dtype=np.float32),
    log_probs=-np.arange(9, dtype=np.float32),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("targets") / "model")


def run_config(model: Path, name: str, *flags: str) -> RunConfig:
    return config(model, "prompts.jsonl", "--custom-advantage-function-path", f"{HERE}.{name}", *flags)


def targets_of(model: Path, name: str, *flags: str, batch: RolloutBatch = BATCH) -> RolloutBatch:
    add = custom_targets(run_config(model, name, *flags))
    assert add is not None
    return add(batch)


def test_without_a_path_there_is_none(model: Path) -> None:
    assert custom_targets(config(model, "prompts.jsonl")) is None


def test_the_function_gets_the_rollout_by_slimes_keys_and_sets_both_columns(model: Path) -> None:
    advantages.calls.clear()
    batch = targets_of(model, "records", "--gamma", "0.9")
    ((args, data),) = advantages.calls
    assert (args.gamma, args.hf_checkpoint) == (0.9, str(model))
    shown = {key: [each.tolist() if isinstance(each, torch.Tensor) else each for each in value] for key, value in data.items()}
    assert shown == {
        "tokens": [[5, 6, 1, 2, 3], [5, 6, 7, 1, 2], [5, 1, 2, 3, 4]],
        "response_lengths": [3, 2, 4],
        "total_lengths": [5, 5, 5],
        "loss_masks": [[1, 0, 1], [0, 0], [0, 1, 1, 0]],
        "rewards": [0.5, 1.0, -1.0],
        "raw_reward": [1.0, 2.0, 3.0],
        "truncated": [0, 1, 0],
        "sample_indices": [7, 8, 9],
        "rollout_ids": [3, 4, 4],
        "rollout_mask_sums": [2, 2, 2],
        "kl": [[0, 0, 0], [0, 0], [0, 0, 0, 0]],
        "log_probs": [[0, -1, -2], [-3, -4], [-5, -6, -7, -8]],
        "values": [[0, 1, 2], [3, 4], [5, 6, 7, 8]],
    }
    assert (data["tokens"][0].dtype, data["loss_masks"][0].dtype) == (torch.int64, torch.int32)
    assert batch.column("advantages").tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert batch.column("returns").tolist() == [10, 11, 12, 10, 11, 10, 11, 12, 13]
    assert batch.column("returns").dtype == np.float32


def test_with_a_kl_penalty_the_function_gets_the_kl(model: Path) -> None:
    advantages.calls.clear()
    reference = BATCH.with_columns(ref_log_probs=np.ones(9, dtype=np.float32))
    targets_of(model, "records", "--kl-coef", "0.5", batch=reference)
    ((_, data),) = advantages.calls
    # k1: log-prob minus the reference's.
    assert torch.cat(data["kl"]).tolist() == [-1, -2, -3, -4, -5, -6, -7, -8, -9]


def test_advantages_are_whitened_afterwards_where_that_is_asked_for(model: Path) -> None:
    batch = targets_of(model, "records", "--normalize-advantages")
    trained = np.array([0.0, 2, 1, 2])  # the trainable tokens' numbers
    want = (trained - trained.mean()) / trained.std(ddof=1)
    np.testing.assert_allclose(batch.column("advantages")[BATCH.loss_mask != 0], want, atol=1e-3)
    assert batch.column("returns").tolist() == [10, 11, 12, 10, 11, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forgets_returns", 'must set rollout_data["returns"] to a list of 3 tensors, one a sample: it is not set'),
        ("gives_one_tensor", 'must set rollout_data["advantages"] to a list of 3 tensors, one a sample: it is Tensor'),
        ("forgets_a_sample", 'must set rollout_data["returns"] to a list of 3 tensors, one a sample: it is list'),
        ("is_short", "advantages of sample 8 must be a tensor of 2 entries, one a response token, not shape (1,)"),
        ("gives_lists", "advantages of sample 7 must be a tensor of 3 entries, one a response token, not list"),
        ("is_not_finite", "returns of sample 9 is nan at response token 3"),
        ("reads_what_is_not_there", "raised on samples 7 to 9: KeyError: 'teacher_log_probs'"),
    ],
)
def test_what_can_not_be_trained_on_names_flag_and_sample(model: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        targets_of(model, name)
    text = str(caught.value)
    assert text.startswith(f"--custom-advantage-function-path {HERE}.{name}")
    assert message in text
    assert "\n" not in text
