"""Runs a command, and ends it with all that it started: when the command ends, and when whoever holds this process's standard
input is gone, however that came about. Started as a script, by its path: it needs nothing of the project.
"""

import os
import signal
import subprocess
import sys
import threading


def keep(command: list[str]) -> int:
    """The command's exit status, 128 and the signal's number if one ended it."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end_with_the_owner() -> None:
        sys.stdin.buffer.read()
        end_group(child.pid)

    threading.Thread(target=end_with_the_owner, daemon=True).start()
    status = child.wait()
    end_group(child.pid)
    return status if status >= 0 else 128 - status


def end_group(leader: int) -> None:
    """Kill what is left of a process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    # Without the interpreter's own clean-up, which would wait for the thread that reads.
    os._exit(keep(sys.argv[1:]))
