"""From a sample to its reward."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slime.arguments.errors import UserError
from slime.rollout.rm_hub.dispatch import async_rm
from slime.utils.types import Sample

SAMPLE = Sample(index=17, prompt="How many?", response="It is \\boxed{4}", label="4")
answer: Any = None


async def give_answer(args: Any, sample: Sample, **kwargs: Any) -> Any:
    """A reward function that returns what the test has put into `answer`."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def not_async(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 1.0


def reward(value: Any, key: str | None = None, function: str = "give_answer") -> Any:
    global answer
    answer = value
    args = SimpleNamespace(custom_rm_path=f"{__name__}.{function}", rm_type=None, reward_key=key)
    return asyncio.run(async_rm(args, SAMPLE))


@pytest.mark.parametrize("value", [0.5, 1, True, np.float32(0.25), torch.tensor(2.0)])
def test_a_finite_number_of_any_kind_is_a_reward(value: Any) -> None:
    assert reward(value) is value


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", "yes", [1.0, 2.0], {"acc": 1.0}, torch.ones(2)])
def test_what_is_no_finite_number_is_refused_and_the_sample_named(value: Any) -> None:
    with pytest.raises(UserError, match="no finite number, for sample 17") as caught:
        reward(value)
    assert all(part in str(caught.value) for part in ("give_answer", "How many?", "It is", repr(value)))


def test_an_error_in_the_reward_function_names_function_sample_and_error() -> None:
    with pytest.raises(UserError, match=r"give_answer raised on sample 17 .*: KeyError\('no answer'\)"):
        reward(KeyError("no answer"))


def test_a_reward_function_that_is_not_async_is_an_error_of_its_own() -> None:
    with pytest.raises(UserError, match=r"not_async raised on sample 17 .*await"):
        reward(None, function="not_async")


def test_a_dict_is_kept_whole_and_the_named_entry_is_checked() -> None:
    value = {"acc": 1.0, "why": "text"}
    assert reward(value, key="acc") is value
    with pytest.raises(UserError, match="no finite number, for sample 17"):
        reward(value, key="why")


@pytest.mark.parametrize("value", [{"acc": 1.0}, 1.0, None])
def test_a_reward_without_the_named_entry_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"sample 17 .* has no entry --reward-key 'score'"):
        reward(value, key="score")


def test_without_a_function_of_ones_own_the_math_reward_is_taken() -> None:
    args = SimpleNamespace(custom_rm_path=None, rm_type="math", reward_key=None)
    assert asyncio.run(async_rm(args, SAMPLE)) == 1.0
    assert asyncio.run(async_rm(args, Sample(response="\\boxed{5}", label="4"))) == 0.0
