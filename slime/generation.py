"""Rollouts and evaluations for the train loop: at once, one ahead, or from a stream that never stops."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import ProcessDied
from slime.arguments.run_config import RunConfig
from slime.backends.cluster import Cluster
from slime.backends.engine_memory import REST, WEIGHTS
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.observability.run_log import RunLog
from slime.rollout.manager import Made, RolloutManager

T = TypeVar("T")

_GLANCE = 0.2
"""Seconds between looks at the processes."""
_DEATHS_ALLOWED = 3
"""Of an engine within one rollout."""


class Generation:
    """--max-staleness 0: each rollout is made when it is asked for, with the newest weights. 1: while one is trained on, the
    next is made, and the weights change once it is done. More: prompts are begun as others finish; weights change meanwhile.

    Under the local launcher what is made at once runs in the calling thread, so that a debugger can follow.
    """

    def __init__(self, config: RunConfig, rollouts: RolloutManager, cluster: Cluster, weights: WeightSync, log: RunLog) -> None:
        self.num_rollout = config.run.num_rollout
        self.ahead = config.rollout.max_staleness > 0
        self.one_ahead = config.rollout.max_staleness == 1 and cluster.engines is not None
        self.rollouts, self.cluster, self.weights, self.log = rollouts, cluster, weights, log
        self._ahead: Future[Made] | None = None
        self._busy = 0.0
        self._since = time.perf_counter()

    def rollout(self, rollout_id: int) -> tuple[RolloutBatch, dict[str, float]]:
        """The batch of one rollout, and its metrics."""
        if self.rollouts.stream is not None:
            self.rollouts.stream.version = self.weights.version
        ahead, self._ahead = self._ahead, None
        if ahead is not None or self.one_ahead:
            with self.log.phase("generate_wait"):
                made = self._attend(ahead or _in_a_thread(lambda: self._make(rollout_id)))
        else:
            with self.log.phase("generate"):
                made = self._now(lambda: self._make(rollout_id))
            self.weights.memory.release()
        if rollout_id + 1 == self.num_rollout:
            self.close()
        batch, metrics = self.rollouts.batch(rollout_id, made)
        if self.one_ahead and rollout_id + 1 < self.num_rollout:
            self._ahead = _in_a_thread(lambda: self._make(rollout_id + 1))
        return batch, metrics | self._staleness(made) | self._idle_time()

    def evaluation(self, rollout_id: int) -> dict[str, float]:
        """Metrics of every evaluation data set."""
        with self.log.phase("evaluate"):
            return self._now(lambda: self._timed(lambda: self.rollouts.evaluate(rollout_id)))

    def settle(self) -> None:
        """Wait until the weights may change: what is made one ahead is made with one version."""
        if self._ahead is not None:
            with self.log.phase("generate_wait"):
                self._attend(self._ahead)

    def state_dict(self) -> dict[str, Any]:
        """Where the data source stands, and the rollout that is made already."""
        self.settle()
        state = self.rollouts.state_dict()
        return state if self._ahead is None else {**state, "ahead": self._ahead.result().as_plain()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if "ahead" in state:
            self._ahead = Future()
            self._ahead.set_result(Made.from_plain(state["ahead"]))
        self.rollouts.load_state_dict({name: value for name, value in state.items() if name != "ahead"})

    def close(self) -> None:
        """Begin no more prompts, and give up those that are not finished."""
        if self.rollouts.stream is not None:
            self.rollouts.stream.close()

    def _make(self, rollout_id: int) -> Made:
        started = time.time()
        made = self._timed(lambda: self.rollouts.make(rollout_id))
        if self.one_ahead:
            self.log.add_span("generate", started, time.time())
        return made

    def _timed(self, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._busy += time.perf_counter() - started

    def _staleness(self, made: Made) -> dict[str, float]:
        behind = made.versions_behind(self.weights.version)
        if not behind or not (self.ahead or any(behind)):
            return {}
        return {"rollout/staleness": float(np.mean(behind)), "rollout/staleness_max": float(max(behind))}

    def _idle_time(self) -> dict[str, float]:
        """Of the engines, since this was last asked."""
        now = time.perf_counter()
        whole, busy, self._since, self._busy = now - self._since, self._busy, now, 0.0
        stream = self.rollouts.stream
        if stream is None:
            return {"time/engine_idle": max(whole - busy, 0.0)} if self.cluster.engines is not None else {}
        return {"time/engine_idle": stream.take_idle_seconds()}

    def _now(self, work: Callable[[], T]) -> T:
        self.weights.memory.resume(*WEIGHTS, *REST)
        return work() if self.cluster.check is None else self._attend(_in_a_thread(work))

    def _attend(self, doing: Future[T]) -> T:
        """Its result. An engine that dies meanwhile is replaced, and what it was asked is asked again; raises ProcessDied if a
        rank dies, or if engines die again and again."""
        deaths = 0
        while self.cluster.check is not None and not wait([doing], timeout=_GLANCE).done:
            self.cluster.check()
            if self.cluster.engines is None:
                continue
            for death in self.cluster.engines.replace_dead(self.weights.newest, self.weights.version):
                deaths += 1
                self.log.progress.print(f"{death}; replaced by one with weight version {self.weights.version}")
                if deaths > _DEATHS_ALLOWED * len(self.cluster.engines.urls):
                    raise ProcessDied(f"rollout engines die faster than they are replaced: {death}")
        return doing.result()


def _in_a_thread(work: Callable[[], T]) -> Future[T]:
    """A daemon: it does not keep a run that has failed from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="generation", daemon=True).start()
    return future
