"""Starting, watching and ending a server, on a program that only behaves like one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from slime.backends.sglang_utils import keeper
from slime.backends.sglang_utils.command import free_port
from slime.backends.sglang_utils.server import SGLangServer

FAKE = Path(__file__).with_name("fake_server.py")


def start(folder: Path, way: str, patience: float = 60.0) -> SGLangServer:
    port = free_port("127.0.0.1")
    command = [sys.executable, str(FAKE), str(port), way]
    return SGLangServer(command, f"http://127.0.0.1:{port}", folder / "logs" / "engine.log", {"A": "b"}, patience)


def child_of(server: SGLangServer) -> psutil.Process:
    (line,) = [line for line in server.log.read_text().splitlines() if line.startswith("child ")]
    return psutil.Process(int(line.split()[1]))


def is_gone(process: psutil.Process) -> bool:
    deadline = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def is_gone_by_id(pid: int) -> bool:
    try:
        return is_gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def test_it_is_there_once_it_generates_and_gone_with_its_children_once_closed(tmp_path: Path) -> None:
    server = start(tmp_path, "serve")
    child = child_of(server)
    assert "healthy" in server.log.read_text()
    assert child.parent().environ()["A"] == "b"
    assert os.getsid(child.pid) != os.getsid(0), "Ctrl-C would reach it"
    server.close()
    assert is_gone(child)


def test_a_server_that_ends_while_it_starts_is_one_line_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did not start: exit status 3, ") as caught:
        start(tmp_path, "fail")
    assert "loading | no such model: nowhere (log: " in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="did not start: signal 9"):
        start(tmp_path, "die")


def test_a_server_that_hangs_is_not_waited_for_for_ever_and_ended(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did not answer in time; its log is"):
        start(tmp_path, "hang", patience=3.0)
    assert is_gone_by_id(int((tmp_path / "logs" / "engine.log").read_text().split()[1]))


def test_whoever_waits_learns_of_its_death_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    server = start(tmp_path, "serve")
    child = child_of(server)
    said: list[str] = []
    waiter = threading.Thread(target=lambda: said.append(server.wait()))
    waiter.start()
    assert child.parent() is not None
    child.parent().kill()
    waiter.join(10)
    assert said[0].startswith("signal 9, ")
    assert is_gone(child)
    server.close()


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_a_server_ends_even_if_who_started_it_or_its_keeper_is_killed(tmp_path: Path, victim: str) -> None:
    # An owner in a process of its own, which can be killed.
    pidfile = tmp_path / "pid"
    command = [sys.executable, "-c", f"import os,time; open({str(pidfile)!r},'w').write(str(os.getpid())); time.sleep(600)"]
    program = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, {keeper.__file__!r}, *{command!r}], stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    keeping = int(owner.stdout.readline())
    while not (pidfile.exists() and pidfile.read_text()):
        time.sleep(0.01)
    served = psutil.Process(int(pidfile.read_text()))
    os.kill(owner.pid if victim == "owner" else keeping, signal.SIGKILL)
    assert is_gone(served)
    owner.kill()
    owner.wait()
