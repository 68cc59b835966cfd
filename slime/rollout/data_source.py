"""Where a rollout's prompts come from: data sets, and a buffer of groups that were put back."""

import abc
import copy
import json
from pathlib import Path
from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.plug_in import describe, groups_from, plug_in
from slime.rollout.prompts import read_prompts
from slime.utils.types import Sample

METHODS = ("get_samples", "add_samples", "save", "load", "__len__")


class DataSource(abc.ABC):
    """What a class of --data-source-path has; it is built with `args`. Deriving from this one is a choice."""

    @abc.abstractmethod
    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next groups, `num_samples` of them."""

    @abc.abstractmethod
    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back."""

    @abc.abstractmethod
    def save(self, rollout_id: int) -> None:
        """Write the state after this rollout to disk."""

    @abc.abstractmethod
    def load(self, rollout_id: int | None = None) -> None:
        """Read what `save` wrote."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Prompts of an epoch."""


class RolloutDataSource(DataSource):
    """Hands out prompts in groups, epoch after epoch, and numbers every sample of the run."""

    def __init__(self, args: Any) -> None:
        """Raises ValueError, naming file and row, for data that can't be used."""
        self.args = args
        self.sample_group_index = 0
        self.sample_index = 0
        self.prompts = read_prompts(args)

    @property
    def epoch_id(self) -> int:
        """Epochs done; of several data sets, by the first."""
        return self.prompts.cursors[0].epoch_id

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next `num_samples` prompts, each a group of n_samples_per_prompt fresh copies."""
        return [self._group(self.prompts.next(self.sample_group_index)) for _ in range(num_samples)]

    def _group(self, prompt: Sample) -> list[Sample]:
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            sample = copy.deepcopy(prompt)
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
            group.append(sample)
        self.sample_group_index += 1
        return group

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Raises UserError: there is no buffer."""
        raise UserError(f"{type(self).__name__} has no buffer to put {describe(samples)} back into")

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, as JSON values."""
        return {
            "sample_group_index": self.sample_group_index,
            "sample_index": self.sample_index,
            "datasets": self.prompts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError for other data."""
        self.prompts.load_state_dict(state["datasets"])
        self.sample_group_index, self.sample_index = state["sample_group_index"], state["sample_index"]

    def save(self, rollout_id: int) -> None:
        """Write the state into the folder of --save: for a class derived from this one. The run itself keeps `state_dict`."""
        file = _state_file(self.args.save, rollout_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.state_dict()))

    def load(self, rollout_id: int | None = None) -> None:
        """Read what `save` wrote, from the folder of --load."""
        if self.args.load is not None and rollout_id is not None:
            self.load_state_dict(json.loads(_state_file(self.args.load, rollout_id).read_text()))

    def __len__(self) -> int:
        return len(self.prompts.rows)


def _state_file(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"data_source_{rollout_id}.json"


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """The same, with groups that were put back handed out first, by --buffer-filter-path."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: list[list[Sample]] = []
        self.buffer_filter = plug_in(args, "buffer_filter_path")

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """From the buffer what it has, then new prompts."""
        groups = self._from_buffer(num_samples) if self.buffer and num_samples else []
        return groups + super().get_samples(num_samples - len(groups))

    def _from_buffer(self, num_samples: int) -> list[list[Sample]]:
        if self.buffer_filter is None:
            return pop_first(self.args, None, self.buffer, num_samples)
        groups = groups_from(self.buffer_filter, self.buffer_filter(self.args, None, self.buffer, num_samples))
        if len(groups) > num_samples:
            raise UserError(f"{self.buffer_filter} must return at most {num_samples} groups, not {len(groups)}")
        left = {id(group) for group in self.buffer}
        if twice := [group for group in groups if id(group) in left]:
            raise UserError(f"{self.buffer_filter} must take what it returns out of the buffer, but left {describe(twice[0])}")
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Put groups back. Raises UserError for what is no group of n_samples_per_prompt."""
        for group in groups_from("add_samples", samples):
            if len(group) != self.args.n_samples_per_prompt:
                wanted = f"--n-samples-per-prompt {self.args.n_samples_per_prompt}"
                raise UserError(f"add_samples takes groups of {wanted}, not of {len(group)} ({describe(group)})")
            self.buffer.append(group)

    def get_buffer_length(self) -> int:
        """Groups in the buffer."""
        return len(self.buffer)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands and what the buffer holds. Raises UserError, naming sample and field, for what JSON can't hold."""
        return {**super().state_dict(), "buffer": [as_plain(group) for group in self.buffer]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError for other data."""
        super().load_state_dict(state)
        self.buffer = [from_plain(group) for group in state["buffer"]]


def pop_first(args: Any, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
    """The buffer filter without --buffer-filter-path: the groups that have waited longest."""
    groups = buffer[:num_samples]
    del buffer[:num_samples]
    return groups


def as_plain(samples: Any) -> Any:
    """A sample as its fields, a list of them as a list. Raises UserError, naming sample and field, for what JSON can't hold."""
    if isinstance(samples, list):
        return [as_plain(each) for each in samples]
    fields = samples.to_dict()
    for name, value in fields.items():
        _require_json(value, f"sample {samples.index} in the buffer: {name}")
    return fields


def from_plain(saved: Any) -> Any:
    """What as_plain was given."""
    return [from_plain(each) for each in saved] if isinstance(saved, list) else Sample.from_dict(saved)


def _require_json(value: Any, where: str) -> None:
    """Whether JSON gives this value back as it is: a tuple would come back as a list, a number as a key as text."""
    if isinstance(value, dict):
        for key, each in value.items():
            _require_json(each, f"{where}[{key!r}]")
            if not isinstance(key, str):
                raise UserError(f"{where} has the key {key!r}, which a checkpoint can't hold: use text")
    elif isinstance(value, list):
        for each in value:
            _require_json(each, where)
    elif not (value is None or isinstance(value, str | int | float)):
        raise UserError(f"{where} holds a {type(value).__name__}, which a checkpoint can't: use plain JSON values")
