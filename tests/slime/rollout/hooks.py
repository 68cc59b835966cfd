"""Plug-ins by slime's signatures, for every flag that takes one, and broken ones. `seen` is what they were called with."""

import copy
from collections.abc import Sequence
from typing import Any

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

HOOKS = "tests.slime.rollout.hooks"
seen: list[Any] = []

Groups = list[list[Sample]]


def takes_the_last(args: Any, rollout_id: int | None, buffer: Groups, num_samples: int) -> Groups:
    seen.append(("takes_the_last", rollout_id, num_samples))
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def leaves_it_in(args: Any, rollout_id: int | None, buffer: Groups, num_samples: int) -> Groups:
    return buffer[:num_samples]


def takes_too_many(args: Any, rollout_id: int | None, buffer: Groups, num_samples: int) -> Groups:
    return [buffer.pop() for _ in range(num_samples + 1)]


def returns_samples(args: Any, rollout_id: int | None, buffer: Groups, num_samples: int) -> list[Sample]:
    return buffer.pop()


def fails(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("oops")


def answers_text(*args: Any, **kwargs: Any) -> Any:
    return "text"


async def scripted(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Two tokens, without an engine, worth the sample's number."""
    sample.tokens = [5, 6]
    meta = {"finish_reason": {"type": "stop"}, "weight_version": "0"}
    sample.append_response_tokens(args, tokens=[7, 8], log_probs=[-1.0, -2.0], meta_info=meta, text="ab")
    sample.reward = float(sample.index or 0)
    return sample


async def knows_evaluation(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Sample:
    seen.append(evaluation)
    return await scripted(args, sample, sampling_params)


async def makes_three(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """Siblings of one rollout, the k-th worth k; all but the last have numbers of their own."""
    siblings = [await scripted(args, copy.deepcopy(sample), sampling_params) for _ in range(3)]
    for k, sibling in enumerate(siblings):
        sibling.reward = float(k)
        sibling.index = None if k == 2 else 1000 - 10 * (sample.index or 0) + k
    return siblings


async def makes_strangers(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    siblings = await makes_three(args, sample, sampling_params)
    siblings[0].rollout_id, siblings[1].rollout_id = 1, 2
    return siblings


async def makes_none(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return []


async def leaves_the_reward(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    done = await scripted(args, sample, sampling_params)
    done.reward = None
    return done


async def leaves_the_rewards_of_two(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return [await leaves_the_reward(args, copy.deepcopy(sample), sampling_params) for _ in range(2)]


async def ranks(args: Any, samples: Sequence[Sample], **kwargs: Any) -> list[float]:
    seen.append([sample.index for sample in samples])
    return [float(place) for place, _ in enumerate(samples)]


async def seven(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 7.0


async def with_key(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    return {"acc": 1.0, "format": 0.5}


def marks(args: Any, sample: Sample, *, rollout_id: int | None = None, evaluation: bool = False) -> None:
    sample.metadata["marked"] = [rollout_id, evaluation]


async def doubles(args: Any, sample: Sample) -> Sample:
    other = copy.deepcopy(sample)
    other.reward = 2 * float(sample.reward or 0)  # type: ignore[arg-type]
    return other


def keeps_even_groups(args: Any, samples: Sequence[Sample], **kwargs: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput((samples[0].group_index or 0) % 2 == 0, "odd_group")


def keeps_none_if_possible(args: Any, samples: Sequence[Sample], **kwargs: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(False, "never", keep_when_insufficient=True)


def is_even(args: Any, samples: Sequence[Sample]) -> bool:
    return (samples[0].group_index or 0) % 2 == 0


def removes_the_first(args: Any, groups: Groups) -> None:
    groups[0][0].remove_sample = True


def counts(args: Any, groups: Groups, data_source: Any) -> None:
    seen.append(([group[0].group_index for group in groups], type(data_source).__name__))


def negated(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    raw = [sample.get_reward_value(args) for sample in samples]
    return raw, [-each for each in raw]


def one_short(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    return [0.0] * len(samples), [0.0] * (len(samples) - 1)


def not_a_number(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    return [0.0] * len(samples), [float("nan")] * len(samples)


def converts(args: Any, samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [1] * len(samples),
        "rewards": [9.0] * len(samples),
        "raw_reward": [3.0] * len(samples),
        "loss_masks": [[1]] * len(samples),
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": [0] * len(samples),
    }


def logs(rollout_id: int, args: Any, samples: Sequence[Sample], extra: dict[str, Any], seconds: float) -> bool:
    seen.append((rollout_id, len(samples), dict(extra), seconds >= 0))
    extra["added"] = 4
    return rollout_id == 1


def logs_evaluation(rollout_id: int, args: Any, data: dict[str, Any], extra: dict[str, Any]) -> bool:
    seen.append((rollout_id, sorted(data)))
    return rollout_id == 1


def reports(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Metrics of its own, with the prefix and without."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in (sample for group in groups for sample in group):
        sample.tokens, sample.response_length, sample.reward, sample.status = [5, 6], 1, 1.0, Sample.Status.COMPLETED
    if evaluation:
        return RolloutFnEvalOutput({"own": {"rewards": [0.5]}}, {"turns": 2})
    return RolloutFnTrainOutput(groups, {"turns": 3, "rollout/tools": 1})


def reports_text(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    output = reports(args, rollout_id, data_source)
    output.metrics = {"turns": "many"}
    return output


class OwnSource:
    """Hands out one prompt again and again; derives from nothing."""

    def __init__(self, args: Any) -> None:
        self.args, self.handed_out = args, 0

    def get_samples(self, num_samples: int) -> Groups:
        groups = []
        for _ in range(num_samples):
            n = self.args.n_samples_per_prompt
            groups.append([Sample(index=n * self.handed_out + i, group_index=self.handed_out, prompt="own") for i in range(n)])
            self.handed_out += 1
        return groups

    def add_samples(self, samples: Groups) -> None:
        seen.append(("put back", len(samples)))

    def save(self, rollout_id: int) -> None:
        seen.append(("save", rollout_id, self.handed_out))

    def load(self, rollout_id: int | None = None) -> None:
        seen.append(("load", rollout_id))

    def __len__(self) -> int:
        return 1


class GivesNothing(OwnSource):
    def get_samples(self, num_samples: int) -> Groups:
        return []


class DerivedSource(RolloutDataSourceWithBuffer):
    """slime's own, with a save of its own."""

    def save(self, rollout_id: int) -> None:
        seen.append(("save", rollout_id))
