"""The plan of a pass: which sample is trained in which optimizer step, on which rank, in which micro-batch.

Each role makes its own plan over the whole batch, so actor and critic may differ in world size, batch size and token budget.

Invariants, which the tests assert: every sample stands in the pass exactly once; the samples of one rollout stand in one step;
every rank has the same number of micro-batches in a step (FSDP's collectives must match); a micro-batch of more than one
sample keeps to the token budget. A rank with too little to do gets empty micro-batches, so any number of samples runs on any
number of ranks.
"""

from dataclasses import dataclass

import numpy as np

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.config import RoleConfig

MicroBatch = tuple[int, ...]
"""Positions of samples in the batch; may be empty."""


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    ranks: tuple[tuple[MicroBatch, ...], ...]
    """[world size][micro-batches]."""

    @property
    def samples(self) -> MicroBatch:
        """All samples of the step, in ascending order."""
        return tuple(sorted(i for rank in self.ranks for micro_batch in rank for i in micro_batch))


def plan_pass(batch: RolloutBatch, role: RoleConfig, world_size: int, order: np.random.Generator | None = None) -> list[Step]:
    """Cut one pass over the batch into steps of `role.global_batch_size` rollouts (None: all of them).

    Rollouts are taken in the batch's order, or in one drawn from `order`. Raises ValueError if the last step would fall short.
    """
    rollouts: dict[int, list[int]] = {}
    for position, index in enumerate(batch.rollout_index.tolist()):
        rollouts.setdefault(index, []).append(position)
    members = list(rollouts.values())
    size = role.global_batch_size or len(members)
    if len(members) % size:
        raise ValueError(f"global_batch_size {size} does not divide the {len(members)} rollouts of this batch")
    sequence = range(len(members)) if order is None else order.permutation(len(members)).tolist()
    ordered = [members[i] for i in sequence]
    steps = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [plan_step([i for rollout in step for i in rollout], batch, role, world_size) for step in steps]


def plan_step(samples: list[int], batch: RolloutBatch, role: RoleConfig, world_size: int) -> Step:
    """Pack these samples into micro-batches and deal them out, the largest first, to the ranks in turn."""
    lengths = batch.total_lengths
    budget = role.max_tokens_per_gpu if role.use_dynamic_batch_size else None
    bins = _pack_by_tokens(samples, lengths, budget) if budget else _pack_by_count(samples, role.micro_batch_size, world_size)
    while len(bins) % world_size and max(map(len, bins)) > 1:
        largest = max((b for b in bins if len(b) > 1), key=lambda b: (sum(lengths[i] for i in b), b))
        bins.remove(largest)
        bins += [largest[::2], largest[1::2]]
    bins.sort(key=lambda b: (-sum(lengths[i] for i in b), b))
    bins += [[]] * (-len(bins) % world_size)
    return Step(tuple(tuple(tuple(b) for b in bins[rank::world_size]) for rank in range(world_size)))


def _pack_by_count(samples: list[int], size: int, world_size: int) -> list[list[int]]:
    share = -(-len(samples) // world_size)
    size = min(size, share)
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def _pack_by_tokens(samples: list[int], lengths: np.ndarray, budget: int) -> list[list[int]]:
    """First-fit decreasing. A sample beyond the budget gets a bin of its own."""
    bins: list[list[int]] = []
    room: list[int] = []
    for sample in sorted(samples, key=lambda i: (-int(lengths[i]), i)):
        length = int(lengths[sample])
        fit = next((k for k, free in enumerate(room) if length <= free), None)
        if fit is None:
            bins.append([sample])
            room.append(budget - length)
        else:
            bins[fit].append(sample)
            room[fit] -= length
    return bins
