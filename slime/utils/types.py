"""Sample: one prompt and its response, on its way from data to training. The name and fields are slime's."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """How a sample's generation stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """Fields are filled in as the sample goes: data source, generate function, reward function."""

    group_index: int | None = None
    """Which prompt group of the run it belongs to."""
    index: int | None = None
    """Its number within the run."""
    rollout_id: int | None = None
    """Samples with the same id share a rollout's weight in the loss. None: the sample is a rollout of its own."""
    prompt: str | list[dict[str, Any]] = ""
    """Text, or chat messages."""
    tokens: list[int] = field(default_factory=list)
    """Prompt tokens, and after generation the response's too."""
    response: str = ""
    """The response as text."""
    response_length: int = 0
    """How many of `tokens`, from the end, are the response."""
    label: Any = None
    """The data's answer, for the reward function."""
    reward: float | dict[str, Any] | None = None
    """A number, or a dict from which --reward-key picks."""
    loss_mask: list[int] | None = None
    """One entry a response token, 1 = trainable. None: all of them."""
    weight_versions: list[str] = field(default_factory=list)
    """Weight versions that generated it, one a request."""
    rollout_log_probs: list[float] | None = None
    """One entry a response token, as the engine saw them."""
    remove_sample: bool = False
    """Keep the sample in the batch but train on none of its tokens."""
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    """The data's --metadata-key column; plug-ins may add to it."""

    Status = Status

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain values."""
        return {**self.__dict__, "status": self.status.value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Sample":
        """What to_dict gave. Values that are no fields become attributes, as in slime."""
        known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        sample = cls(**{**known, "status": Status(values["status"])})
        for name in values.keys() - known.keys():
            setattr(sample, name, values[name])
        return sample

    def get_reward_value(self, args: Any) -> float:
        """The number to train on: `reward`, or its entry --reward-key."""
        if args.reward_key is None:
            return self.reward  # type: ignore[return-value]
        return self.reward[args.reward_key]  # type: ignore[index, no-any-return]
