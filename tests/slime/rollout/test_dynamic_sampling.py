"""Over-sampling, filters, abort and partial rollouts: no prompt is lost, none comes twice, and what was begun is continued."""

import asyncio
import copy
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.backends.embedded.server import EmbeddedServer
from slime.rollout.manager import RolloutManager
from slime.rollout.sglang_rollout import generate, generate_rollout
from slime.utils.types import Sample
from tests.slime.backends.embedded.engines import open_server, save_chat_model, wait_until
from tests.slime.rollout.hooks import HOOKS, scripted
from tests.slime.rollout.runs import manager, write_prompts

HERE = "tests.slime.rollout.test_dynamic_sampling"
LENGTH = 100
quick: set[int] = set()
"""Groups that finish at once; the others hang, or ask the engine."""
servers: list[EmbeddedServer] = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dynamic")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with open_server(save_chat_model(folder / "model")) as opened:
        servers[:] = [opened]
        yield opened


async def hangs_unless_quick(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    sample.metadata["touched"] = True
    if sample.group_index not in quick:
        await asyncio.Event().wait()
    return await scripted(args, sample, sampling_params)


async def long_unless_quick(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """The quick ones finish once the engine has begun all the others."""
    if sample.group_index not in quick:
        return await generate(args, sample, {**sampling_params, "ignore_eos": True})
    await asyncio.to_thread(wait_until, all_begun)
    return await scripted(args, sample, sampling_params)


seen_begun = threading.Event()


def all_begun() -> bool:
    """Whether the engine, which was paused until all had arrived, has seen six requests run together for three tokens."""
    scheduler = servers[0].engine.scheduler
    if len(scheduler._waiting) == 6:
        scheduler.set_paused(False)
    running = [len(request.generation.tokens) for request in scheduler._running]
    if len(running) == 6 and min(running) >= 3:
        seen_begun.set()
    return seen_begun.is_set()


def rollouts(folder: Path, generate: str, *flags: str) -> RolloutManager:
    words = ["--custom-generate-function-path", f"{HERE}.{generate}", "--over-sampling-batch-size", "5"]
    return manager(folder / "model", write_prompts(folder), *words, *flags)


def numbers(groups: list[list[Sample]]) -> list[int]:
    return [group[0].group_index or 0 for group in groups]


def run(own: RolloutManager, rollout_id: int = 0) -> list[list[Sample]]:
    return generate_rollout(own.args, rollout_id, own.data_source).samples  # type: ignore[union-attr]


def test_what_is_not_needed_comes_again_untouched(server: EmbeddedServer, folder: Path) -> None:
    quick.clear()
    quick.update({1, 3})
    own, fresh = (rollouts(folder, "hangs_unless_quick") for _ in range(2))
    assert own.data_source is not None
    assert fresh.data_source is not None
    as_they_come = fresh.data_source.get_samples(5)
    assert numbers(run(own)) == [1, 3]
    assert own.data_source.buffer == [as_they_come[i] for i in (0, 2, 4)]


@pytest.mark.parametrize("partial", [[], ["--partial-rollout"]])
def test_groups_that_finish_together_but_are_not_needed_come_again_too(
    server: EmbeddedServer, folder: Path, partial: list[str]
) -> None:
    quick.clear()
    quick.update(range(5))
    own = rollouts(folder, "hangs_unless_quick", *partial)
    first = numbers(run(own))
    assert own.data_source is not None
    assert sorted(first + numbers(own.data_source.buffer)) == [0, 1, 2, 3, 4]
    done = [sample.status == Sample.Status.COMPLETED for group in own.data_source.buffer for sample in group]
    assert done == [bool(partial)] * 6


def test_what_was_finished_in_an_earlier_rollout_is_masked_whole_if_masks_are_asked_for(
    server: EmbeddedServer, folder: Path
) -> None:
    quick.clear()
    quick.update(range(100))
    own = rollouts(folder, "hangs_unless_quick", "--partial-rollout", "--mask-offpolicy-in-partial-rollout")
    masks = [[sample.loss_mask for group in run(own, rollout_id) for sample in group] for rollout_id in range(2)]
    assert masks == [[[1, 1]] * 4, [[0, 0]] * 4]


@pytest.mark.parametrize("partial", [[], ["--partial-rollout"]])
def test_over_many_rollouts_every_prompt_is_trained_on_once_or_dropped_once(
    server: EmbeddedServer, folder: Path, partial: list[str]
) -> None:
    quick.clear()
    quick.update(range(1000))
    filtered = ["--dynamic-sampling-filter-path", f"{HOOKS}.is_even", "--rollout-all-samples-process-path", f"{HERE}.remember"]
    own = rollouts(folder, "hangs_unless_quick", *filtered, *partial)
    finished.clear()
    trained = [number for rollout_id in range(12) for number in numbers(run(own, rollout_id))]
    assert own.data_source is not None
    handed_out = Counter(range(own.data_source.sample_group_index))
    assert Counter(finished + numbers(own.data_source.buffer)) == handed_out
    assert sorted(trained) == sorted(number for number in finished if number % 2 == 0)
    assert trained[:2] == sorted(trained[:2])


finished: list[int] = []


def remember(args: Any, groups: list[list[Sample]], data_source: Any) -> None:
    finished.extend(numbers(groups))


def begun(server: EmbeddedServer, folder: Path, *flags: str) -> RolloutManager:
    """A rollout whose groups 2, 3 and 4 were aborted while the engine generated them."""
    quick.clear()
    quick.update({0, 1})
    seen_begun.clear()
    server.engine.scheduler.set_paused(True)
    server.engine.scheduler.weight_version = "0"
    words = ["--partial-rollout", "--rollout-max-response-len", str(LENGTH), *flags]
    own = rollouts(folder, "long_unless_quick", *words)
    own.connect(server.host, server.port, [f"http://{server.host}:{server.port}"])
    assert numbers(run(own)) == [0, 1]
    return own


def continued(own: RolloutManager, server: EmbeddedServer) -> list[Sample]:
    """The first two of those groups after the next rollout, with other weights (by name)."""
    server.engine.scheduler.weight_version = "1"
    quick.clear()
    own.args.over_sampling_batch_size = 2
    return [sample for group in run(own, 1) for sample in group]


def test_an_aborted_response_keeps_what_it_has(server: EmbeddedServer, folder: Path) -> None:
    own = begun(server, folder)
    assert own.data_source is not None
    assert numbers(own.data_source.buffer) == [2, 3, 4]
    for sample in (sample for group in own.data_source.buffer for sample in group):
        assert sample.status == Sample.Status.ABORTED
        assert 3 <= sample.response_length < LENGTH
        assert len(sample.response) == sample.response_length == len(sample.rollout_log_probs or [])
        assert (sample.weight_versions, sample.reward, sample.metadata["start_rollout_id"]) == (["0"], None, 0)


@pytest.mark.parametrize("mask", [False, True])
def test_it_is_continued_in_a_later_rollout_also_after_a_restart(server: EmbeddedServer, folder: Path, mask: bool) -> None:
    flags = ["--mask-offpolicy-in-partial-rollout"] if mask else []
    own = begun(server, folder, *flags)
    assert own.data_source is not None
    before = copy.deepcopy([sample for group in own.data_source.buffer[:2] for sample in group])
    restarted = begun(server, folder, *flags)
    restarted.load_state_dict(json.loads(json.dumps(own.state_dict())))
    for sample, earlier in zip(continued(restarted, server), before, strict=True):
        n = earlier.response_length
        assert (sample.index, sample.response_length, sample.status) == (earlier.index, LENGTH, Sample.Status.TRUNCATED)
        assert sample.tokens[: len(earlier.tokens)] == earlier.tokens
        assert earlier.rollout_log_probs is not None
        assert (sample.rollout_log_probs or [])[:n] == earlier.rollout_log_probs
        assert (sample.weight_versions, sample.reward) == (["0", "1"], float(LENGTH))
        assert sample.loss_mask == [int(not mask)] * n + [1] * (LENGTH - n)


def test_with_the_same_weights_a_continued_response_is_the_one_that_would_have_been(
    server: EmbeddedServer, folder: Path
) -> None:
    interrupted = continued(begun(server, folder), server)
    own = rollouts(folder, "long_unless_quick", "--rollout-max-response-len", str(LENGTH), "--rollout-batch-size", "5")
    own.connect(server.host, server.port)
    quick.clear()
    whole = [sample for group in run(own) for sample in group][4:8]
    assert [sample.tokens for sample in interrupted] == [sample.tokens for sample in whole]
    assert [sample.response for sample in interrupted] == [sample.response for sample in whole]


def test_without_partial_rollout_the_engine_is_rid_of_what_was_aborted(server: EmbeddedServer, folder: Path) -> None:
    own = rollouts(folder, "long_unless_quick", "--rollout-max-response-len", str(LENGTH))
    own.connect(server.host, server.port, [f"http://{server.host}:{server.port}"])
    quick.clear()
    quick.update({0, 1})
    seen_begun.clear()
    server.engine.scheduler.set_paused(True)
    run(own)
    wait_until(lambda: not server.engine.scheduler._running and not server.engine.scheduler._waiting)
    assert own.data_source is not None
    assert all(sample == Sample(**_origin(sample)) for group in own.data_source.buffer for sample in group)


def _origin(sample: Sample) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in ("group_index", "index", "prompt", "label", "metadata")}
