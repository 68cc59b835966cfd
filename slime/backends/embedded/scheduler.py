"""Turns requests that arrive at any time into batches, in a thread of its own.

It waits until no request has arrived for a moment, decodes all that wait as one batch, and starts over. Between any two tokens
it can be paused, aborted, or given new weights.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from slime.backends.embedded.decoding import BatchDecoder, Generation

GATHER_SECONDS = 0.005
MAX_BATCH = 256


class Scheduler:
    """Owns the model: nothing else may run it or write its weights, except through `between_tokens`."""

    def __init__(self, model: Any, is_finished: Callable[[Generation], bool], seed: int) -> None:
        self.model, self.is_finished = model, is_finished
        self.weight_version = "0"
        self._draw_seed = random.Random(seed)
        self._waiting: list[tuple[Generation, Future[Generation]]] = []
        self._arrived = 0.0
        self._running: dict[str, Future[Generation]] = {}
        self._aborted: set[str] = set()
        self._paused = self._closed = False
        self._changed = threading.Condition()
        self._model_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="embedded-scheduler", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> "Future[Generation]":
        """Queue a request; the future holds it once finished."""
        future: Future[Generation] = Future()
        if self.is_finished(generation):
            future.set_result(generation)
            return future
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._waiting.append((generation, future))
            self._arrived = time.monotonic()
            self._changed.notify_all()
        return future

    def between_tokens(self, action: Callable[[], None]) -> None:
        """Run `action` while no token is being computed."""
        with self._model_lock:
            action()

    def set_paused(self, paused: bool) -> None:
        """Stop before the next token, or go on."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def abort(self, request_id: str | None) -> None:
        """End one request, or all (None): each returns what it has, with finish reason abort."""
        with self._changed:
            known = [g.request_id for g, _ in self._waiting] + list(self._running)
            self._aborted |= {r for r in known if request_id in (None, r)}
            kept = []
            for generation, future in self._waiting:
                if generation.request_id in self._aborted:
                    generation.finish_reason = {"type": "abort"}
                    future.set_result(generation)
                else:
                    kept.append((generation, future))
            self._waiting = kept
            self._changed.notify_all()

    def close(self) -> None:
        """Stop after the current token; unfinished requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                break
            futures = {generation.request_id: future for generation, future in batch}
            try:
                self._decode([generation for generation, _ in batch], futures)
            except Exception as error:  # whatever it was, the requests must hear of it
                for future in futures.values():
                    if not future.done():
                        future.set_exception(error)
        for _, future in self._waiting:
            future.set_exception(RuntimeError("the engine was closed"))

    def _next_batch(self) -> "list[tuple[Generation, Future[Generation]]] | None":
        """Block until requests wait and the stream of arrivals has paused; None when closed."""
        with self._changed:
            while not self._closed:
                quiet = time.monotonic() - self._arrived
                if self._waiting and not self._paused and (quiet >= GATHER_SECONDS or len(self._waiting) >= MAX_BATCH):
                    batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                    self._running = {generation.request_id: future for generation, future in batch}
                    return batch
                self._changed.wait(GATHER_SECONDS - quiet if self._waiting and not self._paused else None)
        return None

    def _decode(self, batch: list[Generation], futures: "dict[str, Future[Generation]]") -> None:
        with self._model_lock:
            decoder = BatchDecoder(self.model, batch, self._finished, lambda: self._draw_seed.getrandbits(31))
        while decoder.batch:
            with self._changed:
                while self._paused and not self._closed and not self._aborted:
                    self._changed.wait()
                if self._closed:
                    raise RuntimeError("the engine was closed")
            with self._model_lock:
                decoder.step(self.weight_version)
            for generation in batch:
                if generation.finish_reason is not None and not futures[generation.request_id].done():
                    futures[generation.request_id].set_result(generation)
        with self._changed:
            self._running = {}
            self._aborted.clear()

    def _finished(self, generation: Generation) -> bool:
        if generation.request_id in self._aborted:
            generation.finish_reason = {"type": "abort"}
        return generation.finish_reason is not None or self.is_finished(generation)
