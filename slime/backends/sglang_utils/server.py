"""One SGLang server as a process of its own, which ends with this one."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from slime.backends.engines import EngineServer
from slime.backends.sglang_utils import keeper

START_SECONDS = 1800.0
"""A large model may take long to load; a server that hangs should not be waited for for ever."""
_GLANCE = 0.2
_ANSWER_SECONDS = 30.0
_LINES = 3


class SGLangServer(EngineServer):
    """Starts a server and waits until it generates."""

    def __init__(
        self, command: Sequence[str], url: str, log: Path, environment: Mapping[str, str], patience: float = START_SECONDS
    ) -> None:
        """`command` makes a server that listens at `url`; what it says goes to `log`. Raises ValueError with the log's last
        lines if it ends first, or if it does not generate within `patience` seconds."""
        self.url, self.log = url, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, keeper.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the driver, which lets the rollout finish
            )
        try:
            self._wait_until_it_generates(time.monotonic() + patience)
        except BaseException:
            self.close()
            raise

    def _wait_until_it_generates(self, deadline: float) -> None:
        while not _answers(f"{self.url}/health_generate"):
            if self._process.poll() is not None:
                raise ValueError(f"the SGLang server did not start: {self._account()}")
            if time.monotonic() > deadline:
                raise ValueError(f"the SGLang server did not answer in time; its log is {self.log}")
            time.sleep(_GLANCE)

    def wait(self) -> str:
        """Returns when the server has ended, with what is known of why."""
        self._process.wait()
        return self._account()

    def _account(self) -> str:
        status = self._process.returncode
        ended = f"signal {status - 128}" if status > 128 else f"exit status {status}"
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{ended}, {' | '.join(lines[-_LINES:])[-500:]} (log: {self.log})"

    def close(self) -> None:
        """End the server and all its processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
