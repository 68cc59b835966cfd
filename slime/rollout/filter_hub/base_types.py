"""What a dynamic sampling filter answers. The names are slime's."""

from dataclasses import dataclass


@dataclass
class DynamicFilterOutput:
    """Whether the group of a prompt's samples goes into the batch."""

    keep: bool
    reason: str | None = None
    """Why it does not, for a count of what was dropped and why."""
    keep_when_insufficient: bool = False
    """Take a group that was not to be kept after all, where the batch would be short without it."""
