"""A training rollout: prompts are over-sampled, each finished group is filtered, and once enough are kept the rest is aborted.

No prompt is lost and none is trained on twice: what is neither kept nor dropped by the filter goes back to the data source.
With --partial-rollout it goes back as it stands and is continued in a later rollout; without, as it came.
"""

import asyncio
import copy
from typing import Any

from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.generate import GenerateState, generate_and_rm_group
from slime.rollout.group_filter import GroupFilter, at_the_end, in_order, next_groups
from slime.rollout.plug_in import flattened
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
        await abort(args, rollout_id)
    finally:
        await _cancel(state)
    kept = in_order(sampling.kept)
    at_the_end(args, kept, in_order(sampling.finished), data_source)
    put_back = sampling.to_put_back()
    metrics = sampling.filter.take_counts()
    if put_back:
        metrics["rollout/put_back_groups"] = float(len(put_back))
        metrics["rollout/put_back_tokens"] = float(sum(each.response_length for each in flattened(put_back)))
    return RolloutFnTrainOutput(kept, metrics), put_back


Work = asyncio.Task[list[Any]]
"""A group being generated."""


class DynamicSampling:
    """Which groups were handed out, which finished, which are kept."""

    def __init__(self, args: Any, data_source: Any) -> None:
        self.args, self.data_source = args, data_source
        self.filter = GroupFilter(args)
        self.size = args.over_sampling_batch_size or args.rollout_batch_size
        self.kept: list[tuple[int, list[Any]]] = []
        """Groups, each with its number: the index of its first sample as it was handed out."""
        self.finished: list[tuple[int, list[Any]]] = []
        self._handed_out: dict[Work, list[Sample]] = {}
        """As they came, those neither kept nor dropped."""

    async def fill(self, state: GenerateState) -> None:
        """Generate until `rollout_batch_size` groups are kept."""
        target = self.args.rollout_batch_size
        while len(self.kept) < target:
            while state.remaining_batch_size < target:
                self._begin(state)
            done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
            _raise_first_error(done)
            for work in sorted(done, key=self._number):
                if len(self.kept) < target:
                    self._take(work, state)

    def _begin(self, state: GenerateState) -> None:
        groups = next_groups(self.args, self.data_source, self.size)
        for group in groups:
            as_it_came = copy.deepcopy(group)
            work = asyncio.create_task(generate_and_rm_group(self.args, group, state.sampling_params))
            state.pendings.add(work)
            self._handed_out[work] = as_it_came
        state.remaining_batch_size += len(groups)

    def _number(self, work: Work) -> int:
        return flattened(self._handed_out[work])[0].index or 0

    def _take(self, work: Work, state: GenerateState) -> None:
        number, group = self._number(work), work.result()
        del self._handed_out[work]
        self.finished.append((number, group))
        if self.filter.keeps(group, insufficient=state.remaining_batch_size <= self.args.rollout_batch_size):
            self.kept.append((number, group))
        else:
            state.remaining_batch_size -= 1

    def to_put_back(self) -> list[list[Sample]]:
        """Every group that is still out: with --partial-rollout as it stands, else as it came. A group of which a generate
        function had made several samples of one can't be continued, so it starts over."""
        groups = []
        for work, as_it_came in self._handed_out.items():
            stands = work.result() if self.args.partial_rollout else as_it_came
            plain = all(isinstance(each, Sample) for each in stands)
            groups.append((self._number(work), stands if plain else as_it_came))
        return in_order(groups)


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
        _raise_first_error(done)
        groups += [work.result() for work in done]
    for sample in flattened(groups):
        if sample.response_length:
            sample.metadata.setdefault("start_rollout_id", rollout_id)
    return groups


async def _abort_engines(args: Any) -> None:
    for url in args.rollout_engine_urls:
        await post(f"{url}/abort_request", {"abort_all": True})


async def _cancel(state: GenerateState) -> None:
    """The client of a request that goes away takes the request with it."""
    for work in state.pendings:
        work.cancel()
    await asyncio.gather(*state.pendings, return_exceptions=True)
    state.pendings = set()


def _raise_first_error(done: set[Work]) -> None:
    """All are looked at, so that asyncio does not report the others later."""
    errors = [error for work in done if (error := work.exception()) is not None]
    if errors:
        raise errors[0]
