"""Batches and settings that passes are planned for, made up by hypothesis."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.cost import TOKENS, SampleCost
from fsdp_backend.batch.plan import MicroBatch, Step, plan_pass
from fsdp_backend.config import RoleConfig

COSTS = [TOKENS, SampleCost(per_token=10, per_token_pair=1, per_response_token=7)]
"""Whole numbers, so that sums are exact."""


def role(
    global_batch_size: int | None = None, budget: int | None = None, micro_batch_size: int = 1, steps: int | None = None
) -> RoleConfig:
    """Dynamic batches with a budget, static ones without."""
    return RoleConfig(
        hf_checkpoint="",
        global_batch_size=global_batch_size,
        num_steps_per_rollout=steps,
        micro_batch_size=micro_batch_size,
        use_dynamic_batch_size=budget is not None,
        max_tokens_per_gpu=budget,
    )


def batch_of(lengths: list[int], rollouts: list[int] | None = None, masks: list[list[int]] | None = None) -> RolloutBatch:
    """Samples of these total lengths, with one response token each unless said otherwise."""
    masks = masks or [[1]] * len(lengths)
    tokens, rewards = [[0] * n for n in lengths], [0.0] * len(lengths)
    return RolloutBatch.from_samples(tokens, list(map(len, masks)), masks, rewards, rollout_index=rollouts)


def micro_batches(step: Step) -> list[MicroBatch]:
    return [micro_batch for rank in step.ranks for micro_batch in rank]


@dataclass(frozen=True)
class Situation:
    """What a pass is planned for."""

    batch: RolloutBatch
    role: RoleConfig
    world_size: int
    cost: SampleCost
    seed: int | None
    rollouts_per_step: int

    def plan(self) -> list[Step]:
        order = None if self.seed is None else np.random.default_rng(self.seed)
        return plan_pass(self.batch, self.role, self.world_size, order, self.cost)

    def cost_of(self, samples: MicroBatch | list[int]) -> float:
        costs = self.cost.forward(self.batch.total_lengths, self.batch.trainable_lengths)
        return float(costs[list(samples)].sum())

    def first_fit(self, samples: MicroBatch) -> list[list[int]]:
        """Micro-batches by the budget: the longest sample first, into the first that has room."""
        lengths, budget = self.batch.total_lengths.tolist(), self.role.max_tokens_per_gpu
        assert budget is not None
        bins: list[list[int]] = []
        for i in sorted(samples, key=lambda i: (-min(lengths[i], budget), i)):
            roomy = (b for b in bins if sum(lengths[j] for j in [*b, i]) <= budget)
            if (found := next(roomy, None)) is not None:
                found.append(i)
            else:
                bins.append([i])
        return bins

    def order_of_the_pass(self) -> list[int]:
        rollouts = list(dict.fromkeys(self.batch.rollout_index.tolist()))
        order = range(len(rollouts)) if self.seed is None else np.random.default_rng(self.seed).permutation(len(rollouts))
        return [i for k in order for i in np.flatnonzero(self.batch.rollout_index == rollouts[k]).tolist()]


@st.composite
def limits(draw: st.DrawFn, static: bool = True, dynamic: bool = True) -> RoleConfig:
    if dynamic and (not static or draw(st.booleans())):
        return role(budget=draw(st.integers(1, 150)))
    return role(micro_batch_size=draw(st.integers(1, 5)))


ANY_LIMIT = limits()


@st.composite
def situations(draw: st.DrawFn, limit: st.SearchStrategy[RoleConfig] = ANY_LIMIT) -> Situation:
    """Ragged samples, up to four a rollout, the siblings of a rollout not side by side."""
    size, steps = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    siblings = draw(st.lists(st.integers(1, 4), min_size=size * steps, max_size=size * steps))
    index = draw(st.permutations([7 * rollout % 100 for rollout, n in enumerate(siblings) for _ in range(n)]))
    n = len(index)
    lengths = draw(st.lists(st.integers(2, 60), min_size=n, max_size=n))
    drawn = draw(st.lists(st.integers(0, 15), min_size=n, max_size=n))
    masks = [([1] * (k % 4) + [0] * (k // 4))[: length - 1] for k, length in zip(drawn, lengths, strict=True)]
    said = draw(st.sampled_from([(size, None), (None, steps), (size, steps)]))
    return Situation(
        batch=batch_of(lengths, list(index), masks),
        role=replace(draw(limit), global_batch_size=said[0], num_steps_per_rollout=said[1]),
        world_size=draw(st.integers(1, 6)),
        cost=draw(st.sampled_from(COSTS)),
        seed=draw(st.none() | st.integers(0, 3)),
        rollouts_per_step=size,
    )
