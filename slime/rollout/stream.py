"""Generation that never stops: prompts are begun as others finish, and a rollout is the groups that finished first.

Weights may change under a response. What would be more than --max-staleness versions old when it is trained on is dropped, and
its prompt begun anew.
"""

import asyncio
import copy
import threading
import time
from dataclasses import dataclass
from typing import Any

from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.data_source import as_plain
from slime.rollout.generate import GenerateState, generate_and_rm_group
from slime.rollout.group_filter import GroupFilter, at_the_end, in_order, next_groups
from slime.rollout.plug_in import flattened
from slime.utils.http_utils import shared_connections
from slime.utils.types import Sample


@dataclass(frozen=True)
class Begun:
    """A group that is being generated, or finished and not taken."""

    number: int
    """Of its first sample, as it came."""
    as_it_came: list[Any]
    version: int
    """Of the weights of its oldest token, or of when it was begun."""


class Stream:
    """Generates in a thread of its own. At most `max_staleness` rollouts of groups are begun and not taken: whoever is taken in
    his turn is young enough."""

    def __init__(self, args: Any, data_source: Any) -> None:
        self.args, self.data_source = args, data_source
        self.filter = GroupFilter(args)
        self.version = 0
        """Of the engines' weights; the owner keeps it."""
        self.doing: dict[asyncio.Task[list[Any]], Begun] = {}
        self.finished: list[tuple[Begun, list[Any]]] = []
        self.idle_seconds = 0.0
        """In which nothing was being generated."""
        self._error: BaseException | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    def take(self, rollout_id: int) -> RolloutFnTrainOutput:
        """The next `rollout_batch_size` groups that finish and are young enough, in the order of their numbers. Waits for them;
        raises what their generation raised."""
        if self._thread is None and self._error is None:
            self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="stream", daemon=True)
            self._thread.start()
        kept: list[tuple[int, list[Any]]] = []
        judged: list[tuple[int, list[Any]]] = []
        with self._changed:
            stale = self._drop_stale()
            while len(kept) < self.args.rollout_batch_size:
                self._look_again()
                while not self.finished and self._error is None:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                begun, group = self.finished.pop(0)
                judged.append((begun.number, group))
                if self.filter.keeps(group):
                    kept.append((begun.number, group))
        groups = in_order(kept)
        at_the_end(self.args, groups, in_order(judged), self.data_source)
        return RolloutFnTrainOutput(groups, {"rollout/stale_groups": float(stale), **self.filter.take_counts()})

    def _drop_stale(self) -> int:
        """Put back, as they came, the groups that are too old to be trained on now; returns how many."""
        oldest = self.version - self.args.max_staleness
        stale = [begun for begun, _ in self.finished if begun.version < oldest]
        self.finished = [each for each in self.finished if each[0].version >= oldest]
        for task, begun in list(self.doing.items()):
            if begun.version < oldest and self._loop is not None:
                stale.append(self.doing.pop(task))
                # Its request goes away with it.
                self._loop.call_soon_threadsafe(task.cancel)
        self.data_source.add_samples([_unbegun(begun.as_it_came) for begun in sorted(stale, key=lambda each: each.number)])
        return len(stale)

    def state_dict(self) -> dict[str, Any]:
        """The data source's, with what is begun and not taken put back: finished as it is, the rest as it came."""
        with self._changed:
            out = [(begun.number, group) for begun, group in self.finished]
            out += [(begun.number, begun.as_it_came) for begun in self.doing.values()]
            state = self.data_source.state_dict()
            return {**state, "buffer": [as_plain(group) for group in in_order(out)] + state["buffer"]}

    def take_idle_seconds(self) -> float:
        """Since this was last asked."""
        idle, self.idle_seconds = self.idle_seconds, 0.0
        return idle

    def close(self) -> None:
        """Give up what is being generated."""
        with self._changed:
            self._closing = True
            self._look_again()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _look_again(self) -> None:
        if self._loop is not None and self._wake is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _serve(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with shared_connections():
                GenerateState(self.args)  # what all tasks begun here share
                while not self._closing:
                    with self._changed:
                        self._begin()
                    await self._some_change()
        except BaseException as error:
            self._error = error
        finally:
            # They stay among those that are out: a checkpoint puts them back.
            for task in self.doing:
                task.cancel()
            await asyncio.gather(*self.doing, return_exceptions=True)
            with self._changed:
                self._loop = None
                self._changed.notify_all()

    def _begin(self) -> None:
        room = self.args.max_staleness * self.args.rollout_batch_size - len(self.doing) - len(self.finished)
        for group in next_groups(self.args, self.data_source, room) if room > 0 else []:
            samples = flattened(group)
            versions = [int(version) for sample in samples for version in sample.weight_versions]
            begun = Begun(samples[0].index or 0, copy.deepcopy(group), min([self.version, *versions]))
            self.doing[asyncio.create_task(self._generate(group))] = begun

    async def _generate(self, group: list[Any]) -> list[Any]:
        begun = self.version
        done = await generate_and_rm_group(self.args, group, GenerateState(self.args).sampling_params)
        for sample in flattened(done):
            # The engine tells with which weights it ended.
            if sample.weight_versions and int(sample.weight_versions[0]) > begun:
                sample.weight_versions.insert(0, str(begun))
        return done

    async def _some_change(self) -> None:
        """Until a group has finished, or somebody has taken some."""
        assert self._wake is not None
        woken = asyncio.ensure_future(self._wake.wait())
        since = time.perf_counter()
        tasks = list(self.doing)
        done, _ = await asyncio.wait([*tasks, woken], return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()
        self._wake.clear()
        with self._changed:
            if not tasks:
                self.idle_seconds += time.perf_counter() - since
            for task in [task for task in tasks if task in done and task in self.doing]:
                self.finished.append((self.doing.pop(task), task.result()))
            self._changed.notify_all()


def _unbegun(group: list[Any]) -> list[Sample]:
    """As prompts: without what they may have come back with from an earlier rollout, which is as old. Of several samples made
    of one, the first stands for it."""
    prompts = []
    for each in group:
        sample = flattened(each)[0]
        sample.tokens = sample.tokens[: len(sample.tokens) - sample.response_length]
        sample.response, sample.response_length, sample.status = "", 0, Sample.Status.PENDING
        sample.loss_mask = sample.rollout_log_probs = sample.reward = sample.rollout_id = None
        sample.weight_versions = []
        prompts.append(sample)
    return prompts
