"""Turns requests that arrive at any time into batches, in a thread of its own.

It waits until no request has arrived for a moment, decodes all that wait as one batch, and starts over. Between any two tokens
it can be paused, aborted, or given new weights.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from slime.backends.embedded.decoding import BatchDecoder, Generation

GATHER_SECONDS = 0.005
MAX_BATCH = 256


@dataclass(eq=False)
class Request:
    """A generation that someone waits for. Request ids come from outside and need not be unique: this object is."""

    generation: Generation
    future: "Future[Generation]" = field(default_factory=Future)
    aborted: bool = False


class Scheduler:
    """Owns the model: nothing else may run it or write its weights, except through `between_tokens`."""

    def __init__(self, model: Any, is_finished: Callable[[Generation], bool], seed: int) -> None:
        self.model, self.is_finished = model, is_finished
        self.weight_version = "0"
        self._seeds = random.Random(seed)
        self._waiting: list[Request] = []
        self._arrived = 0.0
        self._running: list[Request] = []
        self._writers = 0
        self._paused = self._closed = False
        self._changed = threading.Condition()
        self._model_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="embedded-scheduler", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> "Future[Generation]":
        """Queue a request; the future holds it once finished. It can't be cancelled, only aborted."""
        request = Request(generation)
        request.future.set_running_or_notify_cancel()
        if self.is_finished(generation):
            request.future.set_result(generation)
            return request.future
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._waiting.append(request)
            self._arrived = time.monotonic()
            self._changed.notify_all()
        return request.future

    def between_tokens(self, action: Callable[[], None]) -> None:
        """Run `action` while no token is being computed. Decoding waits for it, so that it is not starved of the lock."""
        with self._changed:
            self._writers += 1
        try:
            with self._model_lock:
                action()
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    def set_paused(self, paused: bool) -> None:
        """Stop before the next token, or go on."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def abort(self, request_id: str | None) -> None:
        """End one request, or all (None): each returns what it has, with finish reason abort, also during a pause."""
        with self._changed:
            for request in self._waiting + self._running:
                request.aborted |= request_id in (None, request.generation.request_id)
            self._waiting = _deliver(self._waiting)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop after the current token; unfinished requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._take_batch():
            try:
                self._decode()
            except Exception as error:  # whatever it was, the requests must hear of it
                self._fail(self._running, error)
                self._running = []
        self._fail(self._waiting, RuntimeError("the engine was closed"))

    def _take_batch(self) -> bool:
        """Block until requests wait and the stream of arrivals has paused, and make them the running ones; False when
        closed."""
        with self._changed:
            while not self._closed:
                quiet = time.monotonic() - self._arrived
                if self._waiting and not self._paused and (quiet >= GATHER_SECONDS or len(self._waiting) >= MAX_BATCH):
                    self._running, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                    return True
                self._changed.wait(GATHER_SECONDS - quiet if self._waiting and not self._paused else None)
        return False

    def _decode(self) -> None:
        decoder = BatchDecoder(self.model, [request.generation for request in self._running], self._seeds)
        while self._may_go_on():
            decoder.drop_finished()
            with self._model_lock:
                decoder.step(self.weight_version)
            for generation in decoder.batch:
                self.is_finished(generation)

    def _may_go_on(self) -> bool:
        """Between two tokens: hand out what has finished, and wait while paused or while weights are written. False when
        nothing is left to decode."""
        with self._changed:
            self._running = _deliver(self._running)
            while self._running and not self._closed and (self._paused or self._writers):
                self._changed.wait()
                self._running = _deliver(self._running)
            if self._running and self._closed:
                raise RuntimeError("the engine was closed")
            return bool(self._running)

    def _fail(self, requests: list[Request], error: Exception) -> None:
        with self._changed:
            for request in requests:
                request.future.set_exception(error)


def _deliver(requests: list[Request]) -> list[Request]:
    """Answer the requests that have ended; returns the others."""
    for request in requests:
        generation = request.generation
        if request.aborted and generation.finish_reason is None:
            generation.finish_reason = {"type": "abort", "message": "aborted on request"}
        if generation.finish_reason is not None:
            request.future.set_result(generation)
    return [request for request in requests if not request.future.done()]
