"""Judging in processes of their own."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from slime.rollout.rm_hub import judge as module
from slime.rollout.rm_hub.judge import Unjudged, judge


def divide(a: int, b: int) -> float:
    return a / b


def never_end(file: Path) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(600)


def test_a_judgement_comes_back_from_another_process() -> None:
    assert asyncio.run(judge(divide, 1, 4)) == 0.25
    assert asyncio.run(judge(os.getpid)) != os.getpid()


def test_what_it_raises_is_raised_here_and_the_process_lives_on() -> None:
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError\('division by zero'\)"):
        asyncio.run(judge(divide, 1, 0))
    assert asyncio.run(judge(divide, 1, 2)) == 0.5


def test_the_event_loop_goes_on_meanwhile() -> None:
    async def ticks_while_judging() -> int:
        await judge(divide, 1, 1)
        judging, ticks = asyncio.ensure_future(judge(time.sleep, 0.5)), 0
        while not judging.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(ticks_while_judging()) > 10


def test_one_that_does_not_end_is_killed_and_the_next_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(judge(divide, 1, 1))
    monkeypatch.setattr(module, "_SECONDS", 1.0)
    start = time.monotonic()
    with pytest.raises(Unjudged, match=r"it took longer than 1 s"):
        asyncio.run(judge(never_end, tmp_path / "pid"))
    while int((tmp_path / "pid").read_text()) in [process.pid for process in multiprocessing.active_children()]:
        time.sleep(0.01)
        assert time.monotonic() - start < 30
    monkeypatch.undo()
    assert asyncio.run(judge(divide, 3, 4)) == 0.75


def test_one_that_brings_its_process_down_costs_no_other() -> None:
    with pytest.raises(Unjudged):
        asyncio.run(judge(os._exit, 3))
    assert asyncio.run(judge(divide, 3, 4)) == 0.75
