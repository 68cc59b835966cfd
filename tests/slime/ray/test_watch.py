"""Waiting for one process ends when another dies."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from slime.arguments.errors import ProcessDied, UserError
from slime.ray.watch import Watch


class Process:
    """Works for as long as it is told."""

    def work(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def refuse(self) -> None:
        raise ValueError("bad critic_lr")

    @ray.method(concurrency_group="life")  # type: ignore[untyped-decorator]
    def live(self) -> None:
        threading.Event().wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(include_dashboard=False, logging_level="error", num_cpus=2)
    yield
    ray.shutdown()


def started() -> Any:
    process = ray.remote(concurrency_groups={"life": 1})(Process).options(num_cpus=0).remote()
    ray.get(process.work.remote(0))
    return process


@pytest.mark.slow
def test_a_death_ends_the_wait_for_another_process_and_names_who_died(cluster: None) -> None:
    watch, (busy, victim) = Watch(), (started(), started())
    watch.add("actor rank 0", busy)
    watch.add("critic rank 0", victim)
    assert watch.get_all([busy.work.remote(0.1), victim.work.remote(0.2)]) == [0.1, 0.2]
    watch.check()
    threading.Timer(0.5, ray.kill, [victim]).start()
    began = time.monotonic()
    with pytest.raises(ProcessDied, match=r"^critic rank 0 died: "):
        watch.get_all([busy.work.remote(60)])
    assert time.monotonic() - began < 20
    with pytest.raises(ProcessDied, match=r"^critic rank 0 died: "):
        watch.check()


@pytest.mark.slow
def test_what_a_process_says_of_its_input_is_one_line_with_the_flag(cluster: None) -> None:
    with pytest.raises(UserError, match=r"^bad --critic-lr$"):
        Watch().get_all([started().refuse.remote()])
