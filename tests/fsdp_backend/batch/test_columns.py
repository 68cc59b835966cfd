"""The columns of a rollout batch: offsets, what is refused, and travel between processes."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fsdp_backend.batch.columns import RolloutBatch
from tests.tiny import random_batch

# The worked example of the module's docstring.
EXAMPLE: dict[str, Any] = {
    "tokens": [[7, 8, 1, 2, 3], [9, 4]],
    "response_lengths": [3, 1],
    "loss_masks": [[1, 0, 1], [1]],
    "rewards": [0.5, -1.0],
}


def test_ragged_lists_become_the_columns_of_the_worked_example() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    assert batch.tokens.tolist() == [7, 8, 1, 2, 3, 9, 4]
    assert batch.token_offsets.tolist() == [0, 5, 7]
    assert batch.loss_mask.tolist() == [1, 0, 1, 1]
    assert batch.response_offsets.tolist() == [0, 3, 4]
    assert batch.reward.tolist() == [0.5, -1.0]
    assert len(batch) == 2


def test_lengths_follow_from_offsets_and_masks() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    assert batch.total_lengths.tolist() == [5, 2]
    assert batch.response_lengths.tolist() == [3, 1]
    assert batch.prompt_lengths.tolist() == [2, 1]
    assert batch.trainable_lengths.tolist() == [2, 1]


def test_lengths_of_random_batches_are_those_of_the_slices() -> None:
    batch = random_batch(30, masked=True)
    for i in range(len(batch)):
        mask = batch.loss_mask[batch.response_offsets[i] : batch.response_offsets[i + 1]]
        assert batch.response_lengths[i] == len(mask)
        assert batch.trainable_lengths[i] == mask.sum()
        assert batch.prompt_lengths[i] == len(batch.tokens[batch.token_offsets[i] : batch.token_offsets[i + 1]]) - len(mask)


def test_unset_fields_mean_that_every_sample_is_a_rollout_of_its_own() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    assert batch.sample_index.tolist() == batch.rollout_index.tolist() == [0, 1]
    assert batch.truncated.tolist() == [False, False]
    assert batch.weight_version.tolist() == [0, 0]
    assert batch.rollout_log_probs is None


def test_a_response_may_be_empty_but_a_prompt_may_not() -> None:
    silent = RolloutBatch.from_samples([[1, 2], [3]], [1, 0], [[1], []], [0.0, 0.0])
    assert silent.response_lengths.tolist() == [1, 0]
    assert silent.trainable_lengths.tolist() == [1, 0]
    with pytest.raises(ValueError, match="sample 17 has no prompt token"):
        RolloutBatch.from_samples([[1, 2], [3]], [1, 1], [[1], [1]], [0.0, 0.0], sample_index=[16, 17])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"tokens": [], "response_lengths": [], "loss_masks": [], "rewards": []}, "at least one sample", id="empty"
        ),
        pytest.param({"loss_masks": [[1, 0], [1]]}, "loss_mask", id="mask too short"),
        pytest.param({"loss_masks": [[1, 0], [1, 1]]}, "loss_mask", id="mask of another sample"),
        pytest.param({"rollout_log_probs": [[0.1], [0.1]]}, "rollout_log_probs", id="log-probs too short"),
        pytest.param({"rewards": [0.5]}, "reward", id="reward missing"),
        pytest.param({"rollout_index": [0]}, "rollout_index", id="rollout index missing"),
        pytest.param({"truncated": [True]}, "truncated", id="truncated missing"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RolloutBatch.from_samples(**(EXAMPLE | change))


@pytest.mark.parametrize("name", ["values", "log_probs", "ref_log_probs", "advantages", "returns"])
def test_a_computed_column_of_another_length_is_refused_by_name(name: str) -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    with pytest.raises(ValueError, match=f"column {name} has 3 entries for 4 response tokens"):
        batch.with_columns(**{name: np.zeros(3, dtype=np.float32)})


def test_columns_are_added_to_a_copy() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    values = np.arange(4, dtype=np.float32)
    assert batch.with_columns(values=values).column("values") is values
    assert batch.values is None
    with pytest.raises(AssertionError, match="values has not been computed"):
        batch.column("values")


def test_a_tensor_of_a_read_only_column_can_be_written_to() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE)
    batch.loss_mask.flags.writeable = False
    tensor = batch.tensor("loss_mask")
    tensor.zero_()
    assert batch.loss_mask.tolist() == [1, 0, 1, 1]


def test_a_batch_survives_pickling_without_a_copy_of_its_columns() -> None:
    batch = random_batch(5, masked=True)
    buffers: list[pickle.PickleBuffer] = []
    wire = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    read_only = [memoryview(bytes(buffer.raw())).toreadonly() for buffer in buffers]
    received = pickle.loads(wire, buffers=read_only)
    for name in ("tokens", "token_offsets", "response_offsets", "loss_mask", "reward", "sample_index", "truncated"):
        column = getattr(received, name)
        np.testing.assert_array_equal(column, getattr(batch, name))
        assert column.dtype == getattr(batch, name).dtype
        assert not column.flags.writeable
        received.tensor(name).zero_()


def test_taking_samples_keeps_every_column_of_theirs() -> None:
    batch = random_batch(6, masked=True)
    size = int(batch.response_offsets[-1])
    kept = [[[i, i + 1][: 1 + i % 2] for i in range(n)] for n in batch.response_lengths.tolist()]
    batch = RolloutBatch.from_samples(
        [batch.tokens[a:b].tolist() for a, b in pairwise(batch.token_offsets)],
        batch.response_lengths.tolist(),
        [batch.loss_mask[a:b].tolist() for a, b in pairwise(batch.response_offsets)],
        batch.reward.tolist(),
        sample_index=range(10, 16),
        rollout_index=[0, 0, 1, 1, 2, 2],
        truncated=[True, False] * 3,
        weight_version=range(6),
        top_p_token_ids=kept,
    ).with_columns(values=np.arange(size, dtype=np.float32))
    taken = batch.take(np.array([4, 1]))
    assert taken.sample_index.tolist() == [14, 11]
    assert taken.rollout_index.tolist() == [2, 0]
    assert taken.weight_version.tolist() == [4, 1]
    assert taken.truncated.tolist() == [True, False]
    assert taken.reward.tolist() == batch.reward[[4, 1]].tolist()
    assert taken.log_probs is None
    for new, old in ((0, 4), (1, 1)):
        for name, offsets in (("tokens", "token_offsets"), ("loss_mask", "response_offsets"), ("values", "response_offsets")):
            (a, b), (c, d) = (getattr(x, offsets)[i : i + 2] for x, i in ((taken, new), (batch, old)))
            np.testing.assert_array_equal(getattr(taken, name)[a:b], getattr(batch, name)[c:d])
        (start, stop), response = taken.response_offsets[new : new + 2], taken.top_p_offsets
        assert response is not None
        assert taken.top_p_token_ids is not None
        ids = [taken.top_p_token_ids[a:b].tolist() for a, b in pairwise(response[start : stop + 1])]
        assert ids == kept[old]


def test_raw_rewards_travel_with_their_samples_and_are_one_each() -> None:
    batch = RolloutBatch.from_samples(**EXAMPLE).with_columns(raw_reward=np.array([3, 4], dtype=np.float32))
    taken = batch.take(np.array([1])).raw_reward
    assert taken is not None
    assert taken.tolist() == [4]
    with pytest.raises(ValueError, match="column raw_reward has 3 entries for 2 samples"):
        batch.with_columns(raw_reward=np.zeros(3, dtype=np.float32))
