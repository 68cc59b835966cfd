"""What a rollout function returns."""

from dataclasses import dataclass, field
from typing import Any

from slime.utils.types import Sample


@dataclass
class RolloutFnTrainOutput:
    """Groups of samples, one group a prompt, and metrics to log."""

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """By data set: rewards, truncated and samples, one entry a sample."""

    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, Any] | None = None
