"""Which groups of a rollout are trained on: --dynamic-sampling-filter-path, and counts of what it drops."""

from collections import Counter
from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.plug_in import describe, flattened, groups_from, plug_in


class GroupFilter:
    """Without a flag it keeps all."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.filter = plug_in(args, "dynamic_sampling_filter_path")
        self._dropped: Counter[str] = Counter()

    def keeps(self, group: list[Any], insufficient: bool = False) -> bool:
        """Whether a finished group is kept; `insufficient`: those left, with this one, are no more than are needed."""
        answer = self._judge(group)
        if answer.keep or (answer.keep_when_insufficient and insufficient):
            return True
        self._dropped[answer.reason or "no_reason"] += 1
        return False

    def take_counts(self) -> dict[str, float]:
        """What was dropped since this was last asked, by reason, as metrics."""
        metrics = {f"rollout/dynamic_filter/drop_{reason}": float(count) for reason, count in self._dropped.items()}
        self._dropped.clear()
        return metrics

    def _judge(self, group: list[Any]) -> DynamicFilterOutput:
        if self.filter is None:
            return DynamicFilterOutput(keep=True)
        answer = self.filter(self.args, group, about=describe(group))
        if isinstance(answer, bool):
            return DynamicFilterOutput(keep=answer)
        if not isinstance(answer, DynamicFilterOutput):
            raise self.filter.wrong(answer, "a DynamicFilterOutput or a bool", describe(group))
        return answer


def next_groups(args: Any, data_source: Any, count: int) -> list[list[Any]]:
    """From the data source. Raises UserError if it has none, or gives samples without an index."""
    who = f"get_samples of --data-source-path {args.data_source_path}"
    groups = groups_from(who, data_source.get_samples(count))
    if not groups:
        raise UserError(f"{who} gave no groups: there is nothing to generate for")
    for group in groups:
        if flattened(group)[0].index is None:
            raise UserError(f"{who} gave {describe(group)} without an index")
    return groups


def at_the_end(args: Any, kept: list[list[Any]], finished: list[list[Any]], data_source: Any) -> None:
    """Let --rollout-sample-filter-path see the groups kept, and --rollout-all-samples-process-path all that finished."""
    for name, seen in (("rollout_sample_filter_path", (kept,)), ("rollout_all_samples_process_path", (finished, data_source))):
        hook = plug_in(args, name)
        if hook is not None:
            hook(args, *seen, about=describe(seen[0]))


def in_order(groups: list[tuple[int, list[Any]]]) -> list[list[Any]]:
    """Numbered groups as the data source handed them out."""
    return [group for _, group in sorted(groups, key=lambda each: each[0])]
