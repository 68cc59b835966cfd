"""Calling what a person plugged in, so that what goes wrong there names the plug-in, its flag and the sample, in one line."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime.arguments.errors import UserError
from slime.utils.misc import load_function
from slime.utils.types import Sample

FUNCTIONS = (
    "rollout_function_path",
    "eval_function_path",
    "data_source_path",
    "custom_generate_function_path",
    "custom_rm_path",
    "dynamic_sampling_filter_path",
    "buffer_filter_path",
    "rollout_sample_filter_path",
    "rollout_all_samples_process_path",
    "custom_reward_post_process_path",
    "custom_convert_samples_to_train_data_path",
    "custom_rollout_log_function_path",
    "custom_eval_rollout_log_function_path",
    "custom_tis_function_path",
    "custom_advantage_function_path",
    "custom_loss_function_path",
)
"""The flags that name one function each."""


@dataclass(frozen=True)
class PlugIn:
    """A function and the flag that named it."""

    flag: str
    path: str
    function: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"

    def __call__(self, *args: Any, about: str = "", **kwargs: Any) -> Any:
        """What the function returns. Raises UserError, with `about`, if it raises."""
        try:
            return self.function(*args, **kwargs)
        except Exception as error:  # a plug-in can raise anything
            self._fail(error, about)
            raise

    async def wait(self, *args: Any, about: str = "", **kwargs: Any) -> Any:
        """The same for a function that may be asynchronous."""
        answer = self(*args, about=about, **kwargs)
        if not inspect.isawaitable(answer):
            return answer
        try:
            return await answer
        except Exception as error:
            self._fail(error, about)
            raise

    def accepts(self, name: str) -> bool:
        """Whether it takes a keyword argument of that name."""
        parameters = inspect.signature(self.function).parameters
        return name in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())

    def wrong(self, answer: Any, wanted: str, about: str = "") -> UserError:
        """What to raise for an answer that is not `wanted`."""
        shown = str(answer).replace("\n", " ")[:80]
        return UserError(f"{self} must return {wanted}{about and f' for {about}'}, not {type(answer).__name__} {shown}")

    def _fail(self, error: Exception, about: str) -> None:
        """Raises what a person reads of it; not for our own functions, whose errors are ours."""
        if isinstance(error, UserError) or getattr(self.function, "__module__", "").startswith("slime."):
            return
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}, line {place.lineno}"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{self} raised{about and f' on {about}'}: {reason} ({where})") from error


def load_plug_in(flag: str, path: str) -> PlugIn:
    """Raises UserError if `path` names nothing that can be called."""
    try:
        function = load_function(path)
    except Exception as error:  # importing a plug-in can raise anything
        raise UserError(f"{flag} {path} can't be imported: {error!r}") from error
    if not callable(function):
        raise UserError(f"{flag} {path} is no function")
    return PlugIn(flag, path, function)


def plug_in(args: Any, name: str) -> PlugIn | None:
    """The plug-in that the flag of this name gives; None without one."""
    path = getattr(args, name)
    return None if path is None else load_plug_in(f"--{name.replace('_', '-')}", path)


def describe(samples: Any) -> str:
    """`sample 3`, or `samples 8 to 11` for a group, whose members may be lists."""
    indices = [sample.index for sample in flattened(samples)]
    if not indices:
        return "no samples"
    return f"sample {indices[0]}" if len(indices) == 1 else f"samples {indices[0]} to {indices[-1]}"


def flattened(samples: Any) -> list[Sample]:
    """All samples of a sample or of lists within lists, in order. Raises TypeError for anything else."""
    if isinstance(samples, Sample):
        return [samples]
    if not isinstance(samples, list | tuple):
        raise TypeError(f"neither a Sample nor a list of them: {type(samples).__name__} {str(samples)[:80]!r}")
    return [each for part in samples for each in flattened(part)]


def groups_from(who: object, groups: Any) -> list[list[Any]]:
    """The groups that `who` gave, checked: a list of lists, none empty, that hold samples. Raises UserError."""
    if not isinstance(groups, list) or not all(isinstance(group, list) and group for group in groups):
        raise UserError(f"{who} must give a list of groups, each a list of samples, not {str(groups)[:80]!r}")
    try:
        flattened(groups)
    except TypeError as error:
        raise UserError(f"{who} must give groups of samples: {error}") from None
    return groups
