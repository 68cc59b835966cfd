"""A training rollout: prompts are over-sampled, each finished group is filtered, and once enough are kept the rest is aborted.

No prompt is lost and none is trained on twice: what is neither kept nor dropped by the filter goes back to the data source.
With --partial-rollout it goes back as it stands and is continued in a later rollout; without, as it came.
"""

import asyncio
import copy
from collections import Counter
from typing import Any

from slime.arguments.errors import UserError
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.generate import GenerateState
from slime.rollout.plug_in import PlugIn, describe, flattened, groups_from, plug_in
from slime.utils.http_utils import post
from slime.utils.types import Sample

_ABORT_AGAIN_SECONDS = 1.0


async def generate_rollout_async(
    args: Any, rollout_id: int, data_source: Any
) -> tuple[RolloutFnTrainOutput, list[list[Sample]]]:
    """`rollout_batch_size` groups in the order of their numbers, and the groups to put back."""
    state = GenerateState(args)
    state.rollout_id = rollout_id
    sampling = DynamicSampling(args, data_source)
    try:
        await sampling.fill(state)
        unfinished = await abort(args, rollout_id)
    finally:
        await _cancel(state)
    kept, finished = by_number(sampling.kept), by_number(sampling.finished)
    process(plug_in(args, "rollout_sample_filter_path"), args, kept)
    process(plug_in(args, "rollout_all_samples_process_path"), args, finished, data_source)
    put_back = sampling.to_put_back(unfinished)
    metrics = sampling.take_dropped()
    if put_back:
        metrics["rollout/put_back_groups"] = float(len(put_back))
        metrics["rollout/put_back_tokens"] = float(sum(each.response_length for each in flattened(put_back)))
    return RolloutFnTrainOutput(kept, metrics), put_back


class DynamicSampling:
    """Which groups were handed out, which finished, which are kept."""

    def __init__(self, args: Any, data_source: Any) -> None:
        self.args, self.data_source = args, data_source
        self.filter = plug_in(args, "dynamic_sampling_filter_path")
        self.size = args.over_sampling_batch_size or args.rollout_batch_size
        self.kept: list[list[Any]] = []
        self.finished: list[list[Any]] = []
        self.dropped: Counter[str] = Counter()
        self.handed_out: dict[int, list[Sample]] = {}
        """By group number, as they came, those neither kept nor dropped."""

    async def fill(self, state: GenerateState) -> None:
        """Generate until `rollout_batch_size` groups are kept."""
        target = self.args.rollout_batch_size
        while len(self.kept) < target:
            while state.remaining_batch_size < target:
                state.submit_generate_tasks(self.next_prompts(self.size))
            done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
            for group in by_number(_results(done)):
                self._take(group, state, target)

    def next_prompts(self, count: int) -> list[list[Sample]]:
        """Groups to generate; kept track of in `handed_out`."""
        who = f"get_samples of --data-source-path {self.args.data_source_path}"
        groups = groups_from(who, self.data_source.get_samples(count))
        if not groups:
            raise UserError(f"{who} gave no groups: the rollout has {len(self.kept)} of {self.args.rollout_batch_size}")
        for group in groups:
            if flattened(group)[0].index is None or number_of(group) in self.handed_out:
                raise UserError(f"{who} gave {describe(group)} without an index, or twice")
            self.handed_out[number_of(group)] = copy.deepcopy(group)
        return groups

    def _take(self, group: list[Any], state: GenerateState, target: int) -> None:
        if len(self.kept) == target:
            # Its turn comes later: it is finished, and goes back with the others.
            state.pendings.add(asyncio.create_task(_done(group)))
            return
        if self.handed_out.pop(number_of(group), None) is None:
            raise UserError(f"a generate function or hook has changed the index of {describe(group)}")
        self.finished.append(group)
        if self.keeps(group, insufficient=state.remaining_batch_size <= target):
            self.kept.append(group)
        else:
            state.remaining_batch_size -= 1

    def keeps(self, group: list[Any], insufficient: bool = False) -> bool:
        """Whether the filter keeps a finished group; `insufficient`: those left, with this one, are no more than are needed."""
        answer = self._judge(group)
        if not (answer.keep or (answer.keep_when_insufficient and insufficient)):
            self.dropped[answer.reason or "no_reason"] += 1
            return False
        return True

    def take_dropped(self) -> dict[str, float]:
        """What the filter has dropped since this was last asked, as metrics."""
        metrics = {f"rollout/dynamic_filter/drop_{reason}": float(count) for reason, count in self.dropped.items()}
        self.dropped.clear()
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

    def to_put_back(self, unfinished: list[list[Any]]) -> list[list[Sample]]:
        """Every group that is still out: as it stands if it is among `unfinished`, else as it came. A group of which a generate
        function had made several samples of one can't be continued, so it starts over."""
        as_it_stands = {number_of(group): group for group in unfinished if all(isinstance(each, Sample) for each in group)}
        return by_number([as_it_stands.get(number, group) for number, group in self.handed_out.items()])


async def abort(args: Any, rollout_id: int) -> list[list[Any]]:
    """End all that is still being generated. With --partial-rollout returns the groups as they stand then; without, none."""
    state = GenerateState(args)
    if not state.pendings:
        return []
    state.aborted = True
    if not args.partial_rollout:
        await _cancel(state)
        await _abort_engines(args)
        return []
    groups: list[list[Any]] = []
    # A request may be on its way to the engine yet, and a generate function may go on with another one: ask until all are back.
    while state.pendings:
        await _abort_engines(args)
        done, state.pendings = await asyncio.wait(state.pendings, timeout=_ABORT_AGAIN_SECONDS)
        groups += _results(done)
    for sample in flattened(groups):
        if sample.response_length:
            sample.metadata.setdefault("start_rollout_id", rollout_id)
    return groups


async def _abort_engines(args: Any) -> None:
    for url in args.rollout_engine_urls:
        await post(f"{url}/abort_request", {"abort_all": True})


async def _cancel(state: GenerateState) -> None:
    """The client of a request that goes away takes the request with it."""
    for task in state.pendings:
        task.cancel()
    await asyncio.gather(*state.pendings, return_exceptions=True)
    state.pendings = set()


def _results(done: set[asyncio.Task[list[Any]]]) -> list[list[Any]]:
    """Raises the first error; all are looked at, so that asyncio does not report the others later."""
    errors = [error for task in done if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in done]


async def _done(group: list[Any]) -> list[Any]:
    return group


def process(hook: PlugIn | None, args: Any, groups: list[list[Any]], *more: Any) -> None:
    """Let a hook of the rollout's end, if there is one, see the groups."""
    if hook is not None:
        hook(args, groups, *more, about=describe(groups))


def number_of(group: list[Any]) -> int:
    """A group's place in the run: the index of its first sample."""
    return flattened(group)[0].index or 0


def by_number(groups: list[list[Any]]) -> list[list[Any]]:
    """In the order in which the data source handed them out."""
    return sorted(groups, key=number_of)
