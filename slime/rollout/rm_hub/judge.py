"""Judgements that may take long, or never end, run in processes of their own: neither the event loop nor the run waits.

Mathematics that a policy writes can keep a computer algebra system busy for ever. math-verify's own timeouts need the main
thread of a process, and can't interrupt a single long operation on big numbers; a process can be killed.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

_SECONDS = 30.0
_START_SECONDS = 120.0
# Each of these threads has a process of its own, started when first used.
_threads = ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2)), thread_name_prefix="judge")
_own = threading.local()


class Unjudged(Exception):
    """The judgement took longer than 30 seconds or brought its process down."""


async def judge(function: Callable[..., Any], *arguments: Any) -> Any:
    """What function(*arguments) returns, in another process. Raises RuntimeError, with what it raised, or Unjudged."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _ask, function, arguments)


def _ask(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if getattr(_own, "process", None) is None:
        _own.process, _own.pipe = _start()
    try:
        _own.pipe.send((function, arguments))
        if not _own.pipe.poll(_SECONDS):
            raise Unjudged(f"it took longer than {_SECONDS:g} s")
        result, error = _own.pipe.recv()
    except (Unjudged, EOFError, OSError) as gone:
        _own.process.kill()
        _own.process = None
        raise Unjudged(*gone.args) from gone
    if error is not None:
        raise RuntimeError(error)
    return result


def _start() -> tuple[Any, Connection]:
    # Not forked: the threads and locks of torch and Ray don't survive that.
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="slime-judge", daemon=True)
    process.start()
    theirs.close()
    try:
        if not pipe.poll(_START_SECONDS):
            raise RuntimeError(f"a process that judges responses did not start within {_START_SECONDS:g} s")
        pipe.recv()
    except EOFError:
        raise RuntimeError("a process that judges responses died while starting; its output says why") from None
    return process, pipe


def _serve(pipe: Connection) -> None:
    # Ctrl-C is for the run, which takes this process with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send("ready")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, str | None] = (function(*arguments), None)
        except Exception as raised:
            # As text: not every exception survives pickling.
            answer = (None, repr(raised))
        pipe.send(answer)
