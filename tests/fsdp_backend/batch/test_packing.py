"""Packed rows against plain loops over the samples."""

import pytest
import torch

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.packing import Pack, pack
from tests.tiny import random_batch

HERE = torch.empty(0).device


def test_the_worked_example_in_reverse_order() -> None:
    batch = RolloutBatch.from_samples([[7, 8, 1, 2, 3], [9, 4]], [3, 1], [[1, 0, 1], [1]], [0.0, 0.0])
    packed = pack(batch, (1, 0), HERE)
    assert packed.input_ids.tolist() == [[9, 4, 7, 8, 1, 2, 3]]
    assert packed.position_ids.tolist() == [[0, 1, 0, 1, 2, 3, 4]]
    assert packed.sample_lengths == (2, 5)
    assert packed.sample_starts.tolist() == [0, 2, 7]
    # Token 2 has no loss mask: it is read and not predicted.
    assert packed.predict_positions.tolist() == [0, 3, 5]
    assert packed.targets.tolist() == [4, 1, 3]
    assert packed.response_index.tolist() == [3, 0, 2]
    assert packed.column(batch.loss_mask).tolist() == [1, 1, 1]
    assert packed.top_p_token_ids is None


@pytest.mark.parametrize("samples", [(0,), (5, 2), (3, 0, 7, 1), tuple(range(8))], ids=str)
def test_rows_are_those_of_a_plain_loop(samples: tuple[int, ...]) -> None:
    batch = random_batch(8, masked=True)
    packed = pack(batch, samples, HERE)
    row: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    columns: list[int] = []
    for i in samples:
        sample = batch.tokens[batch.token_offsets[i] : batch.token_offsets[i + 1]].tolist()
        prompt = len(sample) - int(batch.response_lengths[i])
        for t in range(len(sample)):
            if t >= prompt and batch.loss_mask[batch.response_offsets[i] + t - prompt]:
                predictors.append(len(row) - 1)
                targets.append(sample[t])
                columns.append(int(batch.response_offsets[i]) + t - prompt)
            row.append(sample[t])
            positions.append(t)
    assert packed.input_ids.tolist() == [row]
    assert packed.position_ids.tolist() == [positions]
    assert packed.sample_lengths == tuple(batch.total_lengths[list(samples)])
    assert packed.predict_positions.tolist() == predictors
    assert packed.targets.tolist() == targets
    assert packed.response_index.tolist() == columns


def test_no_response_token_is_predicted_from_another_sample() -> None:
    batch = random_batch(12)
    packed = pack(batch, tuple(range(12)), HERE)
    sample_of = torch.repeat_interleave(torch.arange(12), torch.tensor(packed.sample_lengths))
    assert torch.equal(sample_of[packed.predict_positions], sample_of[packed.predict_positions + 1])


def test_a_sample_without_a_response_brings_its_tokens_and_no_target() -> None:
    batch = RolloutBatch.from_samples([[1, 2, 3], [4, 5]], [0, 1], [[], [1]], [0.0, 0.0])
    packed = pack(batch, (0, 1), HERE)
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert packed.predict_positions.tolist() == [3]
    assert packed.targets.tolist() == [5]
    assert pack(batch, (0,), HERE).targets.tolist() == []


def test_an_empty_micro_batch_is_one_dummy_token_and_no_response() -> None:
    batch = random_batch(2)
    packed = pack(batch, (), HERE)
    assert packed.input_ids.shape == packed.position_ids.shape == (1, 1)
    assert packed.sample_lengths == (1,)
    assert packed.targets.shape == packed.predict_positions.shape == packed.response_index.shape == (0,)
    assert packed.column(batch.loss_mask).shape == (0,)


def test_indices_are_int64_and_columns_keep_their_type() -> None:
    batch = random_batch(3)
    for packed in (pack(batch, (0, 2), HERE), pack(batch, (), HERE)):
        assert_int64(packed)
        assert packed.column(batch.loss_mask).dtype == torch.float32


def test_the_ids_that_a_token_was_sampled_from_go_with_it() -> None:
    batch = RolloutBatch.from_samples(
        [[7, 8, 1, 2, 3], [9, 4]], [3, 1], [[1, 0, 1], [1]], [0.0, 0.0], top_p_token_ids=[[[1, 5], [2, 6], []], [[4, 8, 9]]]
    )
    packed = pack(batch, (1, 0), HERE)
    assert packed.top_p_token_ids is not None
    assert packed.top_p_offsets is not None
    assert packed.targets.tolist() == [4, 1, 3]
    assert packed.top_p_token_ids.tolist() == [4, 8, 9, 1, 5]
    assert packed.top_p_offsets.tolist() == [0, 3, 5, 5]


def assert_int64(packed: Pack) -> None:
    for field in ("input_ids", "position_ids", "predict_positions", "targets", "response_index"):
        assert getattr(packed, field).dtype == torch.int64
