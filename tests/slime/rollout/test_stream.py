"""A stream of generation: first come, first taken; nothing older than allowed, nothing lost, nothing twice."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.rollout.manager import RolloutManager
from slime.rollout.stream import Stream
from slime.utils.types import Sample
from tests.slime.backends.embedded.engines import save_chat_model, wait_until
from tests.slime.rollout.runs import manager, write_prompts

HERE = "tests.slime.rollout.test_stream"
version = 0
may_finish: set[int] = set()
"""Groups whose generation may come to an end."""
began: list[int] = []
given_up: list[int] = []


async def when_allowed(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Finishes, with the weights of that moment, once its group may."""
    assert sample.group_index is not None
    began.append(sample.group_index)
    try:
        while sample.group_index not in may_finish:
            await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        given_up.append(sample.group_index)
        raise
    meta = {"finish_reason": {"type": "stop"}, "weight_version": str(version)}
    sample.append_response_tokens(args, tokens=[5, 6], log_probs=[-1.0, -2.0], meta_info=meta)
    return sample


async def fails(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    raise ZeroDivisionError("no luck")


def drops_odd(args: Any, samples: list[Sample], **kwargs: Any) -> bool:
    return samples[0].group_index % 2 == 0  # type: ignore[operator]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    save_chat_model(folder / "model")
    write_prompts(folder)
    return folder


@pytest.fixture(autouse=True)
def fresh() -> None:
    global version
    version = 0
    for each in (may_finish, began, given_up):
        each.clear()


@pytest.fixture
def rollouts(folder: Path) -> Iterator[RolloutManager]:
    yield from opened(folder, "when_allowed")


def opened(folder: Path, generate: str, *flags: str) -> Iterator[RolloutManager]:
    words = ["--max-staleness", "2", "--custom-generate-function-path", f"{HERE}.{generate}", *flags]
    made = manager(folder / "model", folder / "prompts.jsonl", *words)
    made.connect("127.0.0.1", 1)
    yield made
    assert made.stream is not None
    made.stream.close()


def stream_of(rollouts: RolloutManager) -> Stream:
    assert rollouts.stream is not None
    return rollouts.stream


def groups_of(samples: list[Sample]) -> list[int | None]:
    return [sample.group_index for sample in samples[::2]]


def set_version(rollouts: RolloutManager, to: int) -> None:
    global version
    version = stream_of(rollouts).version = to


def test_a_rollout_is_what_finishes_first_and_the_others_go_on(rollouts: RolloutManager) -> None:
    may_finish.update({1, 3})
    assert groups_of(rollouts.make(0).samples) == [1, 3]
    may_finish.update({0, 2, 4})
    made = rollouts.make(1)
    assert len(made.samples) == 4
    assert set(groups_of(made.samples)) < {0, 2, 4}
    assert Counter(began) == dict.fromkeys(set(began), 2), "every sample of the two of a group is begun once"


def test_no_more_is_begun_than_the_staleness_allows(rollouts: RolloutManager) -> None:
    taking = threading.Thread(target=rollouts.make, args=(0,))
    taking.start()
    wait_until(lambda: len(began) == 8)  # two rollouts of two groups of two
    taking.join(timeout=0.05)
    assert sorted(set(began)) == [0, 1, 2, 3]
    may_finish.update(range(4))
    taking.join()
    wait_until(lambda: len(began) == 12)
    assert sorted(set(began)) == [0, 1, 2, 3, 4, 5]


def test_what_is_too_old_is_dropped_begun_anew_and_counted(rollouts: RolloutManager) -> None:
    may_finish.update({1, 2})
    assert groups_of(rollouts.make(0).samples) == [1, 2]
    wait_until(lambda: len(began) == 12)
    # Groups 0 and 3 were begun with version 0, as were 4 and 5, of which 4 finishes and waits.
    may_finish.add(4)
    wait_until(lambda: len(stream_of(rollouts).finished) == 1)
    set_version(rollouts, 3)
    may_finish.update(range(4, 12))
    may_finish.update({0, 3})
    made = rollouts.make(1)
    assert made.metrics["rollout/stale_groups"] == 4
    assert set(given_up) == {0, 3, 5}
    assert made.versions_behind(3) == [0, 0, 0, 0]
    assert groups_of(made.samples) == [0, 3], "those put back come first"


def test_a_sample_knows_the_oldest_weights_it_may_hold(rollouts: RolloutManager) -> None:
    taking = threading.Thread(target=rollouts.make, args=(0,))
    taking.start()
    wait_until(lambda: len(began) == 8)
    set_version(rollouts, 2)
    may_finish.update(range(4))
    taking.join()
    wait_until(lambda: len(stream_of(rollouts).finished) == 2)
    made = rollouts.make(1)
    assert [sample.weight_versions for sample in made.samples] == [["0", "2"]] * 4
    assert made.versions_behind(2) == [2] * 4


def test_what_the_filter_drops_is_counted_and_replaced(folder: Path) -> None:
    for own in opened(folder, "when_allowed", "--dynamic-sampling-filter-path", f"{HERE}.drops_odd"):
        may_finish.update(range(40))
        made = own.make(0)
        assert all(group is not None and group % 2 == 0 for group in groups_of(made.samples))
        assert made.metrics["rollout/dynamic_filter/drop_no_reason"] >= 1


def test_a_checkpoint_holds_what_is_begun_and_finished_and_nothing_is_lost_or_taken_twice(
    rollouts: RolloutManager, folder: Path
) -> None:
    may_finish.update({1, 2, 5})
    first = groups_of(rollouts.make(0).samples)
    wait_until(lambda: len(stream_of(rollouts).finished) == 1 and len(began) == 12)
    state = json.loads(json.dumps(rollouts.state_dict()))
    begun_before = list(began)
    for resumed in opened(folder, "when_allowed"):
        resumed.load_state_dict(state)
        may_finish.update(range(12))
        taken = [*first, *groups_of(resumed.make(1).samples), *groups_of(resumed.make(2).samples)]
        assert sorted(str(group) for group in taken) == list("012345")
        assert 5 not in began[len(begun_before) :], "what was finished is not generated again"


def test_an_error_in_generation_ends_the_wait(folder: Path) -> None:
    for own in opened(folder, "fails"):
        with pytest.raises(ValueError, match=r"--custom-generate-function-path .*fails.*ZeroDivisionError"):
            own.make(0)


def test_closed_it_gives_up_what_it_generates_and_still_knows_it(rollouts: RolloutManager) -> None:
    may_finish.update({0, 1})
    rollouts.make(0)
    wait_until(lambda: len(began) == 12)
    stream_of(rollouts).close()
    assert set(given_up) == {2, 3, 4, 5}
    assert [group[0]["group_index"] for group in rollouts.state_dict()["buffer"]] == [2, 3, 4, 5]
