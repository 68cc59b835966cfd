"""Runs a command, and ends it with all that it started: when the command ends, and when whoever holds this process's standard
input is gone, however that came about. Started as a script, by its path: it needs nothing of the project.

Ray, when it ends an actor, kills the actor's children and so this process, which then can't end anything: on Linux the kernel
is asked to end the command with it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def keep(command: list[str]) -> int:
    """The command's exit status, 128 and the signal's number if one ended it."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_the_parent)

    def end_with_the_owner() -> None:
        sys.stdin.buffer.read()
        end_group(child.pid)

    threading.Thread(target=end_with_the_owner, daemon=True).start()
    status = child.wait()
    end_group(child.pid)
    return status if status >= 0 else 128 - status


def _end_with_the_parent() -> None:
    """Runs in the child, before it becomes the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group(leader: int) -> None:
    """Kill what is left of a process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    # Without the interpreter's own clean-up, which would wait for the thread that reads.
    os._exit(keep(sys.argv[1:]))
