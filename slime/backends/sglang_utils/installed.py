"""What the installed SGLang says of itself, asked before anything is started."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

from slime.arguments.errors import UserError
from slime.arguments.run_config import RunConfig
from slime.arguments.sglang_flags import PREFIX

INSTALL = "pip install 'sglang>=0.5.20'"
_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"
_FLAGS = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]))
"""


def sglang_python(config: RunConfig) -> str:
    """The Python that has SGLang."""
    return config.engine.sglang_python or sys.executable


def require_sglang(config: RunConfig) -> None:
    """Raises UserError where there is no SGLang, and for a --sglang-x that it does not know."""
    python = sglang_python(config)
    version = _ask(python, _VERSION)
    if version is None:
        where = f"--sglang-python {python}" if config.engine.sglang_python else f"the environment of {python}"
        raise UserError(f"--rollout-engine sglang: there is no SGLang in {where}: {INSTALL}, or give --sglang-python")
    if config.sglang:
        _require_known(config, version, _known_flags(python, version))


def _require_known(config: RunConfig, version: str, known: list[str]) -> None:
    for name in config.sglang:
        flag = "--" + name.removeprefix(PREFIX).replace("_", "-")
        if flag not in known:
            nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.5)
            hint = f"; did you mean --sglang-{nearest[0][2:]}?" if nearest else ""
            raise UserError(f"unknown flag --sglang-{flag[2:]}: SGLang {version} has no {flag}{hint}")


def _known_flags(python: str, version: str) -> list[str]:
    """Asking takes a few seconds, so the answer is kept: a version's flags do not change."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slime-fsdp" / f"sglang-{version}-flags.json"
    try:
        return list(json.loads(cache.read_text()))
    except (OSError, ValueError):
        answer = _ask(python, _FLAGS)
    if answer is None:
        raise UserError(
            f"SGLang {version} of {python} can't be imported: {python} -c 'import sglang.srt.server_args' shows why"
        )
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")
        partial.write_text(answer)
        os.replace(partial, cache)
    except OSError:
        pass  # the next run asks again
    return list(json.loads(answer))


def _ask(python: str, program: str) -> str | None:
    """The last line that it prints; None if it fails."""
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    lines = done.stdout.splitlines()
    return lines[-1] if done.returncode == 0 and lines else None
