"""Batching, pausing, aborting, and new weights between two tokens."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from slime.backends.embedded.decoding import Generation
from slime.backends.embedded.engine import EmbeddedEngine
from slime.backends.embedded.sampling import SamplingParams
from slime.backends.embedded.scheduler import MAX_BATCH
from tests.slime.backends.embedded.engines import (
    TIMEOUT_SECONDS,
    GatedModel,
    generate,
    open_engine,
    save_chat_model,
    wait_until,
)

TEN = SamplingParams(temperature=0, max_new_tokens=10, ignore_eos=True)
SHORT_WHILE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("scheduler") / "model")


@pytest.fixture
def engine(folder: Path) -> Iterator[EmbeddedEngine]:
    with open_engine(folder) as opened:
        yield opened


@pytest.fixture
def gate(engine: EmbeddedEngine) -> Iterator[GatedModel]:
    gated = GatedModel(engine)
    yield gated
    gated.open()


class SlowForOthers:
    """Stands in for the model's lock, which other threads than the scheduler's take only once they may go on."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.go_on, self.scheduler, self.lock = threading.Event(), engine.scheduler, engine.scheduler._model_lock
        self.scheduler._model_lock = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        if threading.current_thread() is not self.scheduler._thread:
            assert self.go_on.wait(TIMEOUT_SECONDS)
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def submit(engine: EmbeddedEngine, name: str, prompt: int = 10) -> "Future[Generation]":
    return engine.scheduler.submit(engine.generation(name, [prompt], TEN))


def ungated(folder: Path, *prompts: int) -> list[list[int]]:
    with open_engine(folder) as engine:
        return [generation.tokens for generation in generate(engine, [[prompt] for prompt in prompts], TEN)]


def result(future: "Future[Generation]") -> Generation:
    return future.result(TIMEOUT_SECONDS)


def test_more_requests_than_a_batch_holds_are_all_answered(engine: EmbeddedEngine, gate: GatedModel) -> None:
    gate.open()
    short = SamplingParams(max_new_tokens=2, ignore_eos=True, temperature=0)
    engine.scheduler.set_paused(True)
    requests = [engine.generation(f"request {i}", [5 + i % 90], short) for i in range(300)]
    futures = [engine.scheduler.submit(request) for request in requests]
    engine.scheduler.set_paused(False)
    done = [result(future) for future in futures]
    assert [g.request_id for g in done] == [f"request {i}" for i in range(300)]
    assert all(g.tokens == done[i % 90].tokens for i, g in enumerate(done))
    assert gate.rows == [MAX_BATCH, MAX_BATCH, 300 - MAX_BATCH, 300 - MAX_BATCH]


def test_requests_that_arrive_together_are_one_batch_and_leave_it_as_they_finish(
    engine: EmbeddedEngine, gate: GatedModel
) -> None:
    gate.open()
    engine.scheduler.set_paused(True)
    lengths = [SamplingParams(max_new_tokens=1 + i, ignore_eos=True) for i in range(3)]
    futures = [engine.scheduler.submit(engine.generation("", [10], length)) for length in lengths]
    engine.scheduler.set_paused(False)
    assert [len(result(future).tokens) for future in futures] == [1, 2, 3]
    assert gate.rows == [3, 2, 1]


def test_a_pause_holds_before_the_next_token_and_then_goes_on_as_if_it_had_not_been(
    engine: EmbeddedEngine, gate: GatedModel, folder: Path
) -> None:
    future = submit(engine, "a")
    gate.wait_for_step()
    engine.scheduler.set_paused(True)
    gate.open()
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    assert not future.done()
    engine.scheduler.set_paused(False)
    assert [result(future).tokens] == ungated(folder, 10)


def test_a_request_that_comes_during_a_pause_waits(engine: EmbeddedEngine, gate: GatedModel) -> None:
    gate.open()
    engine.scheduler.set_paused(True)
    future = submit(engine, "a")
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    engine.scheduler.set_paused(False)
    assert len(result(future).tokens) == 10


def test_one_running_request_is_aborted_and_the_others_go_on(engine: EmbeddedEngine, gate: GatedModel, folder: Path) -> None:
    engine.scheduler.set_paused(True)
    first, second = submit(engine, "a", 10), submit(engine, "b", 20)
    engine.scheduler.set_paused(False)
    gate.wait_for_step()
    engine.scheduler.abort("a")
    gate.open()
    aborted = result(first)
    assert aborted.finish_reason is not None
    assert aborted.finish_reason["type"] == "abort"
    expected = ungated(folder, 10, 20)
    assert (aborted.tokens, result(second).tokens) == (expected[0][:1], expected[1])
    assert len(aborted.log_probs) == 1
    assert gate.rows == [2] + [1] * 9


def test_an_abort_during_a_pause_answers_at_once_and_the_pause_still_holds_for_the_others(
    engine: EmbeddedEngine, gate: GatedModel, folder: Path
) -> None:
    engine.scheduler.set_paused(True)
    first, second = submit(engine, "a", 10), submit(engine, "b", 20)
    engine.scheduler.set_paused(False)
    gate.wait_for_step()
    engine.scheduler.set_paused(True)
    gate.open()
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    engine.scheduler.abort("a")
    assert result(first).tokens == ungated(folder, 10)[0][:1]
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    engine.scheduler.set_paused(False)
    assert [result(second).tokens] == ungated(folder, 20)


def test_aborting_all_ends_running_and_waiting_requests_and_none_that_come_later(
    engine: EmbeddedEngine, gate: GatedModel
) -> None:
    running = submit(engine, "a")
    gate.wait_for_step()
    waiting = submit(engine, "b")
    engine.scheduler.abort(None)
    assert result(waiting).tokens == []
    gate.open()
    assert len(result(running).tokens) == 1
    assert {f.result().finish_reason["type"] for f in (running, waiting)} == {"abort"}  # type: ignore[index]
    assert len(result(submit(engine, "a")).tokens) == 10


def test_an_abort_of_a_waiting_or_unknown_request_does_not_reach_later_ones_of_that_name(
    engine: EmbeddedEngine, gate: GatedModel
) -> None:
    engine.scheduler.set_paused(True)
    waiting = submit(engine, "a")
    engine.scheduler.abort("a")
    engine.scheduler.abort("c")
    assert result(waiting).tokens == []
    later = [submit(engine, "a"), submit(engine, "c")]
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    engine.scheduler.set_paused(False)
    gate.open()
    assert [len(result(future).tokens) for future in later] == [10, 10]


def test_requests_of_the_same_name_are_all_answered(engine: EmbeddedEngine, folder: Path) -> None:
    futures = [submit(engine, "same", prompt) for prompt in (10, 20)]
    assert [result(future).tokens for future in futures] == ungated(folder, 10, 20)


def test_new_weights_come_between_two_tokens_of_a_running_batch(engine: EmbeddedEngine, gate: GatedModel) -> None:
    future = submit(engine, "a")
    gate.wait_for_step()

    def write() -> None:
        engine.scheduler.weight_version = "1"
        written.set()

    written = threading.Event()
    writer = threading.Thread(target=engine.scheduler.between_tokens, args=(write,))
    writer.start()
    wait_until(lambda: engine.scheduler._writers == 1)
    assert not written.is_set()
    gate.permits.release()
    # The second token has no permit: if it had begun before the weights came, they would never come.
    assert written.wait(TIMEOUT_SECONDS)
    writer.join()
    gate.open()
    assert (len(result(future).tokens), result(future).weight_version) == (10, "1")


def test_decoding_waits_for_weights_that_are_slow_to_take_the_model(engine: EmbeddedEngine, gate: GatedModel) -> None:
    future = submit(engine, "a")
    gate.wait_for_step()
    lock = SlowForOthers(engine)
    writer = threading.Thread(target=engine.scheduler.between_tokens, args=(lambda: None,))
    writer.start()
    wait_until(lambda: engine.scheduler._writers == 1)
    gate.open()
    assert not gate.begun.acquire(timeout=SHORT_WHILE)
    lock.go_on.set()
    writer.join()
    assert len(result(future).tokens) == 10


def test_weights_that_fail_to_load_do_not_stop_the_engine(engine: EmbeddedEngine) -> None:
    def fail() -> None:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        engine.scheduler.between_tokens(fail)
    assert len(result(submit(engine, "a")).tokens) == 10


def test_an_error_of_the_model_reaches_the_batchs_requests_and_the_engine_lives_on(
    engine: EmbeddedEngine, gate: GatedModel
) -> None:
    gate.open()
    gate.error = MemoryError("too little")
    failed = [submit(engine, name) for name in "ab"]
    for future in failed:
        with pytest.raises(MemoryError, match="too little"):
            result(future)
    gate.error = None
    assert len(result(submit(engine, "a")).tokens) == 10


@pytest.mark.parametrize("paused", [False, True])
def test_closing_fails_running_and_waiting_requests_rather_than_let_them_hang(
    engine: EmbeddedEngine, gate: GatedModel, paused: bool
) -> None:
    running = submit(engine, "a")
    gate.wait_for_step()
    waiting = submit(engine, "b")
    engine.scheduler.set_paused(paused)
    closing = threading.Thread(target=engine.scheduler.close)
    closing.start()
    wait_until(lambda: engine.scheduler._closed)
    gate.permits.release()
    closing.join(TIMEOUT_SECONDS)
    for future in (running, waiting):
        with pytest.raises(RuntimeError, match="the engine was closed"):
            result(future)
    with pytest.raises(RuntimeError, match="the engine is closed"):
        submit(engine, "c")
    assert len(gate.rows) == 1


def test_a_future_cannot_be_cancelled_under_the_scheduler(engine: EmbeddedEngine, gate: GatedModel) -> None:
    first, second = submit(engine, "a"), submit(engine, "b")
    gate.wait_for_step()
    assert not first.cancel()
    gate.open()
    assert len(result(second).tokens) == len(result(first).tokens) == 10
