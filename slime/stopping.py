"""Ctrl-C and SIGTERM: the first asks a run to stop once the rollout at hand is done and saved, the second stops it at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopRequest:
    """Entered in the main thread, listens; `requested` says whether somebody asked."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print(f"\n{signal.Signals(number).name}: stopping after this rollout; once more stops at once", flush=True)
