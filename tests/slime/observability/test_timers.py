"""The phase timer."""

from collections.abc import Iterator

import pytest

from slime.observability import names
from slime.observability.timers import PhaseTimer


def timer_at(*times: float) -> PhaseTimer:
    """A timer whose clock shows the given times, one after another."""
    clock: Iterator[float] = iter(times)
    return PhaseTimer(lambda: next(clock))


def test_a_phase_entered_twice_adds_up() -> None:
    timer = timer_at(10.0, 12.0, 20.0, 23.5)
    for _ in range(2):
        with timer.phase("generate"):
            pass
    assert timer.take() == {"time/generate": 5.5}


def test_taking_the_times_starts_again_from_nothing() -> None:
    timer = timer_at(0.0, 1.0)
    with timer.phase("save"):
        pass
    timer.take()
    assert timer.take() == {}


def test_the_whole_rollout_may_hold_other_phases() -> None:
    timer = timer_at(0.0, 1.0, 3.0, 7.0)
    with timer.phase("rollout"), timer.phase("values"):
        pass
    assert timer.take() == {"time/values": 2.0, "time/rollout": 7.0}


def test_a_phase_that_raises_is_still_counted() -> None:
    timer = timer_at(0.0, 4.0)
    with pytest.raises(RuntimeError), timer.phase("evaluate"):
        raise RuntimeError
    assert timer.take() == {"time/evaluate": 4.0}


def test_seconds_measured_elsewhere_are_added() -> None:
    timer = timer_at(0.0, 1.0)
    with timer.phase("actor_update"):
        pass
    timer.add("actor_update", 2.0)
    assert timer.take() == {"time/actor_update": 3.0}


def test_an_unknown_phase_is_rejected() -> None:
    timer = timer_at()
    with pytest.raises(ValueError, match="time/lunch"):
        timer.add("lunch", 1.0)
    with pytest.raises(ValueError, match="time/lunch"), timer.phase("lunch"):
        pass


def test_what_is_taken_has_declared_names_only() -> None:
    timer = PhaseTimer()
    for phase in names.PHASES:
        timer.add(phase, 1.0)
    for name in timer.take():
        names.check(name)


def test_the_default_clock_runs_forward() -> None:
    timer = PhaseTimer()
    with timer.phase("generate"):
        pass
    assert 0.0 <= timer.take()["time/generate"] < 60.0
