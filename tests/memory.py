"""What a process allocates."""

import threading
from collections.abc import Callable
from pathlib import Path


def allocated_by(work: Callable[[], object]) -> int:
    """The most bytes that this process held while `work` ran, beyond those it held before; mapped files do not count."""
    before = _anonymous_bytes()
    peak, done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()  # kept until the last look
        peak = max(peak, _anonymous_bytes())
    finally:
        done.set()
        watcher.join()
    del result
    return peak - before


def _anonymous_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
