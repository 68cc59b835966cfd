"""Sampling parameters, and drawing tokens."""

import math
from typing import Any

import pytest
import torch

from slime.backends.embedded.sampling import BatchSampler, SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
DRAWS = 4000


def draw(params: SamplingParams, logits: torch.Tensor = LOGITS, draws: int = DRAWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and log-probs of many draws from the same logits."""
    sampler = BatchSampler.of([params] * draws, logits.shape[-1], logits.device)
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return sampler.draw(logits.expand(draws, -1), uniform)


def assert_frequencies(tokens: torch.Tensor, probs: torch.Tensor) -> None:
    """Pearson's chi-square of the draws is below the 99.9 % quantile of its distribution."""
    counts = tokens.bincount(minlength=len(probs)).double()
    assert counts[probs == 0].sum() == 0
    expected = probs[probs > 0].double() * len(tokens)
    statistic = ((counts[probs > 0] - expected).square() / expected).sum()
    quantiles = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
    assert statistic < quantiles[len(expected) - 1]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(temperature: float) -> None:
    tokens, log_probs = draw(SamplingParams(temperature=temperature))
    expected = (LOGITS / temperature).log_softmax(-1)
    assert_frequencies(tokens, expected.exp())
    torch.testing.assert_close(log_probs, expected[tokens])


def test_the_frequencies_of_another_temperature_would_be_noticed() -> None:
    tokens, _ = draw(SamplingParams(temperature=0.9))
    with pytest.raises(AssertionError):
        assert_frequencies(tokens, LOGITS.softmax(-1))


@pytest.mark.parametrize(("top_p", "kept"), [(0.6, 1), (0.7, 2), (0.9, 3), (0.97, 4), (1e-300, 1)])
def test_top_p_keeps_the_fewest_likely_tokens_that_reach_it(top_p: float, kept: int) -> None:
    tokens, log_probs = draw(SamplingParams(top_p=top_p))
    probs = LOGITS.softmax(-1)
    assert probs[: kept - 1].sum() < top_p or kept == 1
    nucleus = torch.where(torch.arange(5) < kept, probs, 0)
    if kept > 1:
        assert_frequencies(tokens, nucleus / nucleus.sum())
    assert set(tokens.tolist()) == set(range(kept))
    torch.testing.assert_close(log_probs, probs.log()[tokens])


@pytest.mark.parametrize("top_k", [1, 2, 5, 2**70])
def test_top_k_keeps_the_k_likeliest_tokens(top_k: int) -> None:
    shuffled = torch.tensor([3, 1, 4, 0, 2])
    tokens, _ = draw(SamplingParams(top_k=top_k), LOGITS[shuffled])
    assert set(shuffled[tokens].tolist()) == set(range(min(top_k, 5)))


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(temperature=1e-30), SamplingParams(top_k=1)])
def test_greedy_takes_the_likeliest_token_and_reports_its_untempered_log_prob(params: SamplingParams) -> None:
    tokens, log_probs = draw(params, LOGITS.flip(0))
    assert set(tokens.tolist()) == {4}
    torch.testing.assert_close(log_probs[0], LOGITS.log_softmax(-1)[0])


def test_rows_keep_their_own_settings_when_others_leave() -> None:
    params = [
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.1),
    ]
    sampler = BatchSampler.of(params, 5, LOGITS.device).keep(torch.tensor([0, 3]))
    tokens, log_probs = sampler.draw(LOGITS.expand(2, -1), torch.tensor([0.9999999, 0.9999999], dtype=torch.float64))
    assert tokens.tolist() == [4, 0]
    torch.testing.assert_close(log_probs[0], (LOGITS / 0.5).log_softmax(-1)[4])


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    tokens, _ = BatchSampler.of([SamplingParams()], 5, logits.device).draw(logits, torch.tensor([uniform], dtype=torch.float64))
    assert tokens.item() in (1, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (-1, math.nan, math.inf, "hot", None, True)),
        *(("top_p", bad) for bad in (0, 1.1, math.nan, "x")),
        *(("top_k", bad) for bad in (0, -2, 1.5, "x")),
        *(("max_new_tokens", bad) for bad in (-1, 1.5, "3", None)),
        *(("min_new_tokens", bad) for bad in (-1, 0.5)),
        *(("stop", bad) for bad in ("", ["a", ""], 5, [5], {"a": 1})),
        *(("stop_token_ids", bad) for bad in (5, ["a"], [1.0], "12")),
        *(("ignore_eos", bad) for bad in (1, "yes", None)),
        ("skip_special_tokens", 0),
        *(("sampling_seed", bad) for bad in ("1", 1.5)),
    ],
)
def test_a_value_that_cannot_be_honoured_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be "):
        SamplingParams.from_request({name: value})


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="not supported here: min_p, regex"):
        SamplingParams.from_request({"regex": "a*", "temperature": 1, "min_p": 0.1})
    with pytest.raises(ValueError, match="sampling_params must be an object"):
        SamplingParams.from_request([1])


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(ValueError, match="min_new_tokens is 9, more than max_new_tokens, 8"):
        SamplingParams(min_new_tokens=9, max_new_tokens=8)


def test_stop_is_one_string_or_several() -> None:
    stops = [SamplingParams(stop=stop).stop_strings for stop in (None, "ab", ["a", "b"], [])]
    assert stops == [(), ("ab",), ("a", "b"), ()]
