"""Timing pairs in turn, A B A B, so that whatever else the machine does falls on both."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Measure = Callable[[], float]
"""Does something once and returns the seconds that count."""


def timed(action: Callable[[], Any]) -> Measure:
    """The whole of `action` counts, until the device is done with it."""

    def measure() -> float:
        settle()
        start = time.perf_counter()
        action()
        settle()
        return time.perf_counter() - start

    return measure


def settle() -> None:
    """Wait for the accelerator, where there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def alternate(rounds: int, *measures: Measure) -> list[list[float]]:
    """Each measure once a round, in turn; returns the seconds by measure, then round."""
    seconds: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, kept in zip(measures, seconds, strict=True):
            kept.append(measure())
    return seconds


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch with this many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
