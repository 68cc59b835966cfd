"""From a sample to its reward."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from slime.arguments.errors import UserError
from slime.arguments.reward_types import RewardType
from slime.rollout import rm_hub
from slime.rollout.rm_hub import dispatch
from slime.rollout.rm_hub.dispatch import async_rm, batched_async_rm
from slime.rollout.rm_hub.judge import Unjudged
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


async def give_answer_to_the_group(args: Any, samples: list[Sample], **kwargs: Any) -> Any:
    """The same for --group-rm; a function is asked what to make of the samples."""
    if isinstance(answer, Exception):
        raise answer
    return answer(samples) if callable(answer) else answer


def args_of(**flags: Any) -> SimpleNamespace:
    """The flags that rewards read, but for these at their defaults."""
    defaults = {"custom_rm_path": None, "rm_type": None, "rm_url": None, "reward_key": None, "rollout_seed": 42}
    return SimpleNamespace(**{**defaults, **flags})


def reward(value: Any, key: str | None = None, function: str = "give_answer") -> Any:
    global answer
    answer = value
    return asyncio.run(async_rm(args_of(custom_rm_path=f"{__name__}.{function}", reward_key=key), SAMPLE))


@pytest.mark.parametrize("value", [0.5, 1, True, np.float32(0.25), torch.tensor(2.0)])
def test_a_finite_number_of_any_kind_is_a_reward(value: Any) -> None:
    assert reward(value) is value


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", "yes", [1.0, 2.0], {"acc": 1.0}, torch.ones(2)])
def test_what_is_no_finite_number_is_refused_and_the_sample_named(value: Any) -> None:
    with pytest.raises(UserError, match="no finite number, for sample 17") as caught:
        reward(value)
    assert all(part in str(caught.value) for part in ("give_answer", "How many?", "It is", repr(value)))


def test_an_error_in_the_reward_function_names_function_sample_and_error() -> None:
    with pytest.raises(UserError, match=r"--custom-rm-path .*give_answer raised on sample 17 .*: KeyError\('no answer'\)"):
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


BUILT_IN: list[tuple[str, str, object, float]] = [
    ("math", "It is \\boxed{4}", "4", 1.0),
    ("math", "It is 4", "4", 1.0),
    ("math", "\\boxed{5}", "4", 0.0),
    ("boxed_math", "3 + 1 = \\boxed{4}", "4", 1.0),
    ("boxed_math", "It is 4", "4", 0.0),
    ("boxed_math", "\\boxed{5} or \\boxed{\\frac{8}{2}}", "4", 1.0),
    ("boxed_math", "\\boxed{x^2+1}", "1+x^2", 1.0),
    ("dapo", "Answer: 4", "4", 1.0),
    ("dapo", "Answer: 5", "4", -1.0),
    ("boxed_dapo", "\\boxed{5} Answer: 4", "4", 1.0),
    ("deepscaler", "</think> \\boxed{4}", "4", 1.0),
    ("deepscaler", "\\boxed{4}", "4", 0.0),
    ("boxed_deepscaler", "</think> \\boxed{4}", "4", 1.0),
    ("f1", "in red Paris", "Paris", 0.5),
    ("boxed_f1", "in red \\boxed{Paris}", "Paris", 1.0),
    ("boxed_f1", "in red Paris", "Paris", 0.0),
    ("gpqa", "Not A. The answer is B", "B", 1.0),
    ("gpqa", "The answer is A. \\boxed{B}", "B", 0.0),
    ("boxed_gpqa", "The answer is A. \\boxed{B}", "B", 1.0),
]


@pytest.mark.parametrize(("name", "response", "label", "expected"), BUILT_IN)
def test_rm_type_says_which_reward_is_taken(name: str, response: str, label: object, expected: float) -> None:
    assert asyncio.run(async_rm(args_of(rm_type=name), Sample(response=response, label=label))) == expected


def test_a_samples_own_rm_type_goes_before_the_flag() -> None:
    def of(**metadata: Any) -> Any:
        sample = Sample(response="Paris. Answer: 4", label="4", metadata=metadata)
        return asyncio.run(async_rm(args_of(rm_type="f1"), sample))

    assert of(rm_type="dapo") == of(rm_type=" dapo ") == 1.0
    assert of() == of(rm_type=None) == of(rm_type="") == pytest.approx(0.5)
    sample = Sample(response="Answer: 4", label="4", metadata={"rm_type": "dapo"})
    assert asyncio.run(async_rm(args_of(), sample)) == 1.0


def test_gpqa_reads_the_metadata() -> None:
    sample = Sample(response="B", metadata={"rm_type": "gpqa", "correct_letter": "B"})
    assert asyncio.run(async_rm(args_of(), sample)) == 1.0


@pytest.mark.parametrize(("key", "expected"), [("score", -1.0), ("acc", False)])
def test_dapo_gives_all_it_knows_where_a_reward_key_picks(key: str, expected: float) -> None:
    sample = Sample(response="Answer: 5", label="4")
    verdict = asyncio.run(async_rm(args_of(rm_type="dapo", reward_key=key), sample))
    assert verdict == {"score": -1.0, "acc": False, "pred": "5"}
    assert verdict[key] == expected


def test_random_is_a_coin_that_falls_the_same_way_again() -> None:
    def toss(seed: int) -> list[int]:
        args = args_of(rm_type="random", rollout_seed=seed)
        return [asyncio.run(async_rm(args, Sample(index=index, response="a"))) for index in range(200)]

    assert toss(1) == toss(1) != toss(2)
    assert set(toss(1)) == {0, 1}
    assert 60 < sum(toss(1)) < 140


REFUSED: list[tuple[str | None, dict[str, Any], object, str]] = [
    (None, {}, "4", "has no metadata rm_type: give --rm-type or --custom-rm-path"),
    ("math", {"rm_type": "maths"}, "4", "metadata rm_type 'maths' is none of math, dapo"),
    ("math", {"rm_type": 3}, "4", "metadata rm_type 3 is none of math, dapo"),
    ("math", {"rm_type": "remote_rm"}, "4", "the reward remote_rm needs --rm-url"),
    ("math", {"rm_type": "boxed_ifbench"}, "4", "the reward ifbench is not available"),
    ("boxed_math", {}, None, "has no label, which the reward boxed_math compares with"),
    ("math", {"rm_type": "f1"}, None, "has no label, which the reward f1 compares with"),
    ("gpqa", {}, None, "reward function --rm-type gpqa raised on sample 17 .*neither a label nor metadata correct_letter"),
    ("math", {"rm_type": "gpqa"}, None, r"reward function gpqa \(metadata rm_type\) raised on sample 17"),
]


@pytest.mark.parametrize(("rm_type", "metadata", "label", "message"), REFUSED)
def test_a_sample_that_lacks_what_its_reward_needs_is_named(
    rm_type: str | None, metadata: dict[str, Any], label: object, message: str
) -> None:
    sample = Sample(index=17, response="4", label=label, metadata=metadata)
    with pytest.raises(UserError, match=message) as caught:
        asyncio.run(async_rm(args_of(rm_type=rm_type), sample))
    assert "sample 17" in str(caught.value)


def test_what_cannot_be_judged_in_time_counts_as_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def gives_up(*arguments: Any) -> Any:
        raise Unjudged("it took longer than 30 s")

    monkeypatch.setattr(dispatch, "judge", gives_up)
    rewards = [asyncio.run(async_rm(args_of(rm_type=name), SAMPLE)) for name in ("math", "deepscaler", "dapo")]
    assert rewards == [0.0, 0.0, -1.0]
    assert "sample 17" in (said := capsys.readouterr().out)
    assert "counts as wrong: it took longer than 30 s" in said


def test_answers_that_keep_computer_algebra_busy_do_not_stop_the_loop() -> None:
    async def ticks() -> tuple[int, Any]:
        sample = Sample(response="\\boxed{" + "(" * 400 + "x" + ")" * 400 + "}", label="7")
        judging, ticks = asyncio.ensure_future(async_rm(args_of(rm_type="math"), sample)), 0
        while not judging.done():
            await asyncio.sleep(0.05)
            ticks += 1
        return ticks, judging.result()

    count, value = asyncio.run(ticks())
    assert count > 20
    assert value == 0.0


def group_reward(value: Any, **flags: Any) -> list[Any]:
    global answer
    answer = value
    samples = [Sample(index=index, response="a" * index, label="4") for index in (5, 6, 7)]
    args = args_of(**{"custom_rm_path": f"{__name__}.give_answer_to_the_group", **flags})
    return asyncio.run(batched_async_rm(args, samples))


@pytest.mark.parametrize("value", [[0.5, 1, 2.0], (0.5, 1, 2.0), np.array([0.5, 1, 2.0]), torch.tensor([0.5, 1.0, 2.0])])
def test_a_function_may_judge_a_group_at_once(value: Any) -> None:
    assert group_reward(value) == [0.5, 1, 2]
    assert group_reward(lambda samples: [float(len(sample.response)) for sample in samples]) == [5.0, 6.0, 7.0]


@pytest.mark.parametrize("value", [[1.0, 2.0], [1.0] * 4, [], 1.0, None, "abc", {5: 1.0, 6: 1.0, 7: 1.0}, torch.tensor(1.0)])
def test_a_group_needs_a_reward_for_each_of_its_samples(value: Any) -> None:
    with pytest.raises(UserError, match=r"the group of samples 5, 6, 7: it must return a list of 3 rewards") as caught:
        group_reward(value)
    assert f"--custom-rm-path {__name__}.give_answer_to_the_group returned" in str(caught.value)


def test_a_reward_of_a_group_that_is_no_number_names_its_sample() -> None:
    with pytest.raises(UserError, match=r"--custom-rm-path .* returned nan, no finite number, for sample 6 "):
        group_reward([1.0, math.nan, 1.0])
    with pytest.raises(UserError, match=r"sample 7 .* has no entry --reward-key 'acc'"):
        group_reward([{"acc": 1}, {"acc": 1}, {}], reward_key="acc")


def test_an_error_in_the_function_of_a_group_names_function_samples_and_error() -> None:
    with pytest.raises(UserError, match=r"--custom-rm-path .* raised on the group of samples 5, 6, 7: KeyError\('no'\)"):
        group_reward(KeyError("no"))


def test_without_a_function_of_ones_own_the_samples_of_a_group_are_judged_one_by_one() -> None:
    samples = [Sample(response=f"\\boxed{{{number}}}", label="4") for number in (3, 4, 5, 4)]
    assert asyncio.run(batched_async_rm(args_of(rm_type="math"), samples)) == [0.0, 1.0, 0.0, 1.0]


def test_the_names_of_the_rewards_come_with_and_without_the_prefix() -> None:
    names = get_args(RewardType)
    plain = {name for name in names if not name.startswith("boxed_")}
    assert plain == {"remote_rm", "deepscaler", "dapo", "math", "f1", "gpqa", "ifbench", "random"}
    assert sorted(names) == sorted(plain | {f"boxed_{name}" for name in plain})


def test_plug_ins_find_both_functions_where_slime_has_them() -> None:
    assert (rm_hub.async_rm, rm_hub.batched_async_rm) == (async_rm, batched_async_rm)
