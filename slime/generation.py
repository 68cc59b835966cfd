"""Rollouts and evaluations for the train loop, with an eye on the processes while they are made."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from fsdp_backend.batch.columns import RolloutBatch
from slime.arguments.errors import ProcessDied
from slime.backends.cluster import Cluster
from slime.backends.engine_memory import REST, WEIGHTS
from slime.backends.fsdp_utils.weight_sync import WeightSync
from slime.observability.run_log import RunLog
from slime.rollout.manager import RolloutManager

T = TypeVar("T")

_GLANCE = 0.2
"""Seconds between looks at the processes."""
_DEATHS_ALLOWED = 3
"""Of an engine within one rollout."""


class Generation:
    """Under the local launcher all runs in the calling thread, so that a debugger can follow; else in one of its own."""

    def __init__(self, rollouts: RolloutManager, cluster: Cluster, weights: WeightSync, log: RunLog) -> None:
        self.rollouts, self.cluster, self.weights, self.log = rollouts, cluster, weights, log

    def rollout(self, rollout_id: int) -> tuple[RolloutBatch, dict[str, float]]:
        """The batch of one rollout, and its metrics."""
        made = self._attend(lambda: self.rollouts.generate(rollout_id))
        self.weights.memory.release()
        return made

    def evaluation(self, rollout_id: int) -> dict[str, float]:
        """Metrics of every evaluation data set."""
        return self._attend(lambda: self.rollouts.evaluate(rollout_id))

    def _attend(self, work: Callable[[], T]) -> T:
        """Its result. An engine that dies meanwhile is replaced, and what it was asked is asked again; raises ProcessDied if a
        rank dies, or if engines die again and again."""
        self.weights.memory.resume(*WEIGHTS, *REST)
        if self.cluster.check is None:
            return work()
        doing, deaths = _in_a_thread(work), 0
        while not wait([doing], timeout=_GLANCE).done:
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
