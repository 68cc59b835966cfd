"""Loading plug-ins by name."""

import functools
import importlib
from typing import Any


@functools.cache
def load_function(path: str) -> Any:
    """The object that `module.attribute` names. Raises ImportError or AttributeError as Python does, ValueError without a
    dot."""
    module, dot, attribute = path.rpartition(".")
    if not dot:
        raise ValueError(f"{path!r} is no dotted path module.attribute")
    return getattr(importlib.import_module(module), attribute)
