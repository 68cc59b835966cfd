"""The plan of a pass: which sample is trained in which optimizer step, on which rank, in which micro-batch.

Each role makes its own plan over the whole batch, so actor and critic may differ in world size, batch size and token budget.

Invariants, which the tests assert:

- Every sample stands in the pass exactly once.
- The samples of one rollout stand in one step, and all steps have the same number of rollouts. Which samples make a step
  depends on neither ranks, nor micro-batches, nor cost.
- Every rank has the same number of micro-batches in a step (FSDP's collectives must match), no more than first-fit packing
  needs. One is empty only where samples run out, and then none holds two. So any number of samples runs on any number of ranks.
- With a token budget, a micro-batch of more than one sample keeps to it. Without, a micro-batch has at most `micro_batch_size`
  samples, neighbours in the order of the pass.
- Micro-batches that meet (the j-th of every rank: each collective waits for the slowest) are neighbours in cost, and no
  micro-batch costs more than one that comes before it.
- The slowest rank is no slower than if the micro-batches had been dealt out in turn. With a token budget, a step takes no
  longer than with first-fit packing, where that comes out as a multiple of the ranks.
- The same arguments give the same plan: every rank makes it for itself.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from fsdp_backend.batch.balance import balance
from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.cost import TOKENS, SampleCost
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


def plan_pass(
    batch: RolloutBatch,
    role: RoleConfig,
    world_size: int,
    order: np.random.Generator | None = None,
    cost: SampleCost = TOKENS,
) -> list[Step]:
    """Cut one pass over the batch into steps, by `role.global_batch_size` or `role.num_steps_per_rollout` (neither: one step).

    Rollouts are taken in the batch's order, or in one drawn from `order`. Raises ValueError if the last step would fall short,
    or if the two contradict each other.
    """
    rollouts: dict[int, list[int]] = {}
    for position, index in enumerate(batch.rollout_index.tolist()):
        rollouts.setdefault(index, []).append(position)
    members = list(rollouts.values())
    size = _rollouts_per_step(role, len(members))
    sequence = range(len(members)) if order is None else order.permutation(len(members)).tolist()
    ordered = [members[i] for i in sequence]
    steps = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [plan_step([i for rollout in step for i in rollout], batch, role, world_size, cost) for step in steps]


def pass_order(seed: int, rollout_id: int, k: int) -> np.random.Generator:
    """What draws the order of a role's pass k (from 0) over a rollout."""
    return np.random.default_rng([seed, rollout_id, k])


def hold_out(batch: RolloutBatch, prompts: int, seed: int, rollout_id: int) -> tuple[RolloutBatch, RolloutBatch | None]:
    """The samples to train on, in the batch's order, and those to hold out: all rollouts of so many prompts (None for 0), drawn
    by (seed, rollout). A rollout of several prompts goes by its first. Raises ValueError if nothing is left to train on."""
    if prompts == 0:
        return batch, None
    prompt = batch.prompt_index
    total = int(prompt.max()) + 1
    if prompts >= total:
        raise ValueError(f"critic_holdout_fraction leaves none of the {total} prompts of this batch to train on")
    # A fourth number, since numpy pads seeds with zeros: three would be those of a pass.
    drawn = np.random.default_rng([seed, rollout_id, 0, 1]).choice(total, prompts, replace=False)
    _, first, rollout = np.unique(batch.rollout_index, return_index=True, return_inverse=True)
    held_out = np.isin(prompt[first], drawn)[rollout]
    return batch.take(np.flatnonzero(~held_out)), batch.take(np.flatnonzero(held_out))


def plan_step(samples: list[int], batch: RolloutBatch, role: RoleConfig, world_size: int, cost: SampleCost = TOKENS) -> Step:
    """Pack these samples into micro-batches and deal them out to the ranks."""
    costs = cost.forward(batch.total_lengths, batch.trainable_lengths).tolist()
    if role.use_dynamic_batch_size:
        assert role.max_tokens_per_gpu is not None
        bins = _pack_by_tokens(samples, batch.total_lengths.tolist(), costs, role.max_tokens_per_gpu, world_size)
    else:
        bins = _cut_by_count(samples, role.micro_batch_size, world_size)
    return Step(_deal(bins, costs, world_size))


def _rollouts_per_step(role: RoleConfig, rollouts: int) -> int:
    size, steps = role.global_batch_size, role.num_steps_per_rollout
    if size is not None and rollouts % size:
        raise ValueError(f"global_batch_size {size} does not divide the {rollouts} rollouts of this batch")
    if steps is not None and rollouts % steps:
        raise ValueError(f"num_steps_per_rollout {steps} does not divide the {rollouts} rollouts of this batch")
    if size is not None and steps is not None and size * steps != rollouts:
        raise ValueError(
            f"global_batch_size {size} and num_steps_per_rollout {steps} contradict each other: "
            f"this batch has {rollouts} rollouts, so {steps} steps take {rollouts // steps} each"
        )
    return size or rollouts // (steps or 1)


def _number_of_bins(least: int, samples: int, world_size: int) -> int:
    """The same number for every rank, but no bin without a sample."""
    return min(-(-least // world_size) * world_size, samples)


def _cut_by_count(samples: list[int], size: int, world_size: int) -> list[list[int]]:
    """Runs of at most `size` neighbours, of equal length but for one sample."""
    n = len(samples)
    count = _number_of_bins(-(-n // size), n, world_size)
    return [samples[n * k // count : n * (k + 1) // count] for k in range(count)]


def _pack_by_tokens(
    samples: list[int], lengths: list[int], costs: list[float], budget: int, world_size: int
) -> list[list[int]]:
    """As many bins as first-fit decreasing needs, rounded up to whole ranks; of two ways to fill them, the one that is sooner
    done."""
    # A sample beyond the budget counts as just filling it, so it gets a bin of its own like any other that fills one.
    tokens = {i: min(lengths[i], budget) for i in samples}
    first_fit = _first_fit(tokens, budget)
    count = _number_of_bins(len(first_fit), len(samples), world_size)
    packings = [_split(first_fit, costs, count)]
    if (spread := _spread(tokens, costs, budget, count)) is not None:
        packings.append(spread)
    return min(packings, key=lambda bins: _duration(bins, costs, world_size))


def _first_fit(tokens: dict[int, int], budget: int) -> list[list[int]]:
    """Each sample, the longest first, into the first bin with room for it."""
    bins: list[list[int]] = []
    room = np.full(len(tokens), budget)
    for sample in sorted(tokens, key=lambda i: (-tokens[i], i)):
        k = int(np.argmax(room >= tokens[sample]))
        if k == len(bins):
            bins.append([])
        bins[k].append(sample)
        room[k] -= tokens[sample]
    return bins


def _spread(tokens: dict[int, int], costs: list[float], budget: int, count: int) -> list[list[int]] | None:
    """Each sample, the costliest first, into the cheapest of `count` bins that has room for it; None if one has none."""
    order = sorted(tokens, key=lambda i: (-costs[i], i))
    bins = [[i] for i in order[:count]]
    room = np.array([budget - tokens[i] for i in order[:count]])
    load = np.array([costs[i] for i in order[:count]])
    for sample in order[count:]:
        load_with_room = np.where(room >= tokens[sample], load, np.inf)
        k = int(np.argmin(load_with_room))
        if load_with_room[k] == np.inf:
            return None
        bins[k].append(sample)
        room[k] -= tokens[sample]
        load[k] += costs[sample]
    return bins


def _split(bins: list[list[int]], costs: list[float], count: int) -> list[list[int]]:
    """Halve the costliest bin of several samples until there are `count`."""
    whole = [b for b in bins if len(b) == 1]
    several = [(-_sum(b, costs), b) for b in bins if len(b) > 1]
    heapq.heapify(several)
    while len(whole) + len(several) < count:
        _, largest = heapq.heappop(several)
        for half in balance([costs[i] for i in largest], 2, equal_count=False):
            part = [largest[k] for k in half]
            if len(part) > 1:
                heapq.heappush(several, (-_sum(part, costs), part))
            else:
                whole.append(part)
    return whole + [b for _, b in several]


def _duration(bins: list[list[int]], costs: list[float], world_size: int) -> float:
    """Cost of the step once dealt out: the j-th micro-batches of all ranks take as long as the costliest of them."""
    return sum(sorted((_sum(b, costs) for b in bins), reverse=True)[::world_size])


def _deal(bins: list[list[int]], costs: list[float], world_size: int) -> tuple[tuple[MicroBatch, ...], ...]:
    """Bins to ranks, each rank's costliest first. Equal-count balancing gives a rank one bin of each `world_size` neighbours
    in cost: they meet in a slot, which makes the sum over slots of the costliest as small as it can be."""
    bins = bins + [[]] * (-len(bins) % world_size)
    bin_costs = [_sum(b, costs) for b in bins]
    ranks = balance(bin_costs, world_size, equal_count=True)
    return tuple(tuple(tuple(bins[k]) for k in sorted(rank, key=lambda k: (-bin_costs[k], bins[k]))) for rank in ranks)


def _sum(samples: list[int], costs: list[float]) -> float:
    # Not numpy's sum, whose last bit depends on the processor: all ranks must make the same plan.
    return sum(costs[i] for i in samples)
