"""`slime train --train-backend megatron`: the same command line, for an upstream slime checkout."""

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from slime.arguments.errors import UserError


def wants_megatron(words: Sequence[str]) -> bool:
    """Whether the command line asks for Megatron."""
    return _value(words, "--train-backend") == "megatron"


def hand_over(words: Sequence[str]) -> None:
    """Become `python train.py WORDS` of the checkout that SLIME_UPSTREAM names; does not return.

    The words are handed on as they are, and so is the environment, but that the checkout comes first on PYTHONPATH. Raises
    UserError without a checkout, and for what its Megatron backend can't do.
    """
    passes = _value(words, "--critic-update-steps")
    if passes not in (None, "1"):
        raise UserError(
            f"--critic-update-steps {passes} needs --train-backend fsdp: slime's Megatron backend trains actor and critic by "
            "one schedule, one pass each"
        )
    folder = os.environ.get("SLIME_UPSTREAM")
    if not folder:
        raise UserError("--train-backend megatron runs slime itself: set SLIME_UPSTREAM to a checkout of it (or use fsdp)")
    script = Path(folder).resolve() / "train.py"
    if not script.is_file():
        raise UserError(f"SLIME_UPSTREAM={folder} holds no train.py: it must be a checkout of slime")
    paths = [str(script.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    print(f"handing over to {script}", flush=True)
    os.execve(sys.executable, [sys.executable, str(script), *words], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def _value(words: Sequence[str], flag: str) -> str | None:
    """What the last occurrence of a flag sets, as `--flag value` or `--flag=value`."""
    found = None
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else following
    return found
