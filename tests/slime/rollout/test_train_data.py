"""slime's train-data dict as a batch."""

from typing import Any

import numpy as np
import pytest

from slime.arguments.errors import UserError
from slime.rollout.plug_in import PlugIn
from slime.rollout.train_data import batch_from_train_data

OWN = PlugIn("--custom-convert-samples-to-train-data-path", "mine.convert", lambda: None)
DATA: dict[str, Any] = {
    "tokens": [[1, 2, 3], [4, 5, 6, 7], [8, 9]],
    "response_lengths": [2, 2, 1],
    "rewards": [0.5, -0.5, 1.0],
    "raw_reward": [1, 0, 1],
    "truncated": [0, 1, 0],
    "sample_indices": [10, 11, 12],
    "rollout_ids": [7, 7, 12],
    "loss_masks": [[1, 1], [0, 1], [1]],
    "rollout_mask_sums": [3, 3, 1],
    "rollout_log_probs": [[-1.0, -2.0], [0.0, -3.0], [-4.0]],
}


def test_every_key_becomes_its_column() -> None:
    batch, raw = batch_from_train_data(OWN, DATA)
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (batch.response_lengths.tolist(), batch.loss_mask.tolist()) == ([2, 2, 1], [1, 1, 0, 1, 1])
    assert (batch.reward.tolist(), raw) == ([0.5, -0.5, 1.0], [1.0, 0.0, 1.0])
    assert (batch.sample_index.tolist(), batch.rollout_index.tolist()) == ([10, 11, 12], [7, 7, 12])
    assert batch.truncated.tolist() == [False, True, False]
    np.testing.assert_array_equal(batch.column("rollout_log_probs"), [-1, -2, 0, -3, -4])


def test_optional_keys_may_be_missing_and_slimes_own_are_set_aside() -> None:
    needed = {key: DATA[key] for key in ("tokens", "response_lengths", "rewards", "loss_masks")}
    batch, raw = batch_from_train_data(OWN, {**needed, "metadata": [None] * 3})
    assert (batch.rollout_index.tolist(), batch.rollout_log_probs, raw) == ([0, 1, 2], None, [0.5, -0.5, 1.0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss_masks": None}, "the dict has no loss_masks"),
        ({"teacher_log_probs": [[]]}, "the dict has teacher_log_probs, unknown here"),
        ({"rewards": [1.0]}, "rewards has 1 entries for 3 samples"),
        ({"rewards": [1.0, float("nan"), 0.0]}, "sample 11 has the reward nan"),
        ({"loss_masks": [[1], [0, 1], [1]]}, "column loss_mask does not have the lengths of the responses"),
        ({"rollout_mask_sums": [2, 1, 1]}, "rollout_mask_sums are not the sums of loss_masks by rollout_ids"),
    ],
)
def test_what_is_wrong_is_named_with_the_plug_in(changes: dict[str, Any], reason: str) -> None:
    data = {key: value for key, value in (DATA | changes).items() if value is not None}
    with pytest.raises(UserError, match=rf"^--custom-convert-samples-to-train-data-path mine.convert: {reason}"):
        batch_from_train_data(OWN, data)


def test_something_else_than_a_dict_is_named() -> None:
    with pytest.raises(UserError, match=r"mine.convert must return a dict of slime's train data, not list"):
        batch_from_train_data(OWN, [])
