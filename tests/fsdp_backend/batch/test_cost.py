"""What samples cost, term by term."""

import numpy as np

from fsdp_backend.batch.cost import TOKENS, SampleCost

LENGTHS, RESPONSES = np.array([10, 3, 4000]), np.array([4, 0, 3999])


def test_a_sample_costs_its_tokens_its_length_squared_and_its_response() -> None:
    cost = SampleCost(per_token=5, per_token_pair=2, per_response_token=7)
    assert cost.forward(LENGTHS, RESPONSES).tolist() == [5 * 10 + 2 * 100 + 7 * 4, 5 * 3 + 2 * 9, 20_000 + 32_000_000 + 27_993]


def test_without_a_model_a_sample_costs_its_number_of_tokens() -> None:
    assert TOKENS.forward(LENGTHS, RESPONSES).tolist() == [10, 3, 4000]


def test_costs_are_float64_and_do_not_overflow_the_integers_of_lengths() -> None:
    lengths = np.array([4_000_000_000], dtype=np.int64)
    costs = SampleCost(per_token=1e10, per_token_pair=1e6, per_response_token=1e9).forward(lengths, lengths)
    assert costs.dtype == np.float64
    assert costs.tolist() == [4e19 + 1.6e25 + 4e18]
