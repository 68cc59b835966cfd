"""The invariants of a plan, one test each, on batches that hypothesis makes up; and its agreement with golden schedules."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.cost import TOKENS, SampleCost
from fsdp_backend.batch.plan import Step, hold_out, pass_order, plan_pass, plan_step
from tests.fsdp_backend.batch.situations import Situation, batch_of, limits, micro_batches, role, situations
from tests.golden import Case, cases
from tests.tiny import random_batch

WORLDS = [1, 2, 3, 4]
reproducible = settings(derandomize=True, deadline=None, max_examples=100)


@reproducible
@given(situations())
def test_every_sample_stands_in_a_pass_exactly_once(now: Situation) -> None:
    placed = Counter(i for step in now.plan() for micro_batch in micro_batches(step) for i in micro_batch)
    assert placed == Counter(range(len(now.batch)))


@reproducible
@given(situations())
def test_the_samples_of_a_rollout_stand_in_one_step_and_every_step_has_as_many_rollouts(now: Situation) -> None:
    steps = [set(now.batch.rollout_index[list(step.samples)]) for step in now.plan()]
    assert all(len(step) == now.rollouts_per_step for step in steps)
    assert sum(map(len, steps)) == len(set.union(*steps)) == len(set(now.batch.rollout_index))


@reproducible
@given(situations())
def test_which_samples_make_a_step_depends_on_neither_ranks_nor_micro_batches_nor_cost(now: Situation) -> None:
    plainest = replace(now, role=role(now.rollouts_per_step), world_size=1, cost=TOKENS)
    assert [step.samples for step in now.plan()] == [step.samples for step in plainest.plan()]


@reproducible
@given(situations())
def test_every_rank_has_the_same_number_of_micro_batches_and_as_few_as_hold_the_samples(now: Situation) -> None:
    for step in now.plan():
        assert len(step.ranks) == now.world_size
        (number,) = {len(rank) for rank in step.ranks}
        if now.role.use_dynamic_batch_size:
            needed = len(now.first_fit(step.samples))
        else:
            needed = -(-len(step.samples) // now.role.micro_batch_size)
        assert number == -(-needed // now.world_size)


@reproducible
@given(situations())
def test_a_micro_batch_is_empty_only_where_no_other_holds_two_samples(now: Situation) -> None:
    for step in now.plan():
        if () in micro_batches(step):
            assert max(map(len, micro_batches(step))) == 1


@reproducible
@given(situations(limits(static=False)))
def test_a_micro_batch_of_several_samples_keeps_to_the_token_budget(now: Situation) -> None:
    budget = now.role.max_tokens_per_gpu
    assert budget is not None
    for micro_batch in (m for step in now.plan() for m in micro_batches(step) if len(m) > 1):
        assert now.batch.total_lengths[list(micro_batch)].sum() <= budget


@reproducible
@given(situations(limits(dynamic=False)))
def test_a_micro_batch_by_number_is_a_short_run_of_neighbours_in_the_pass(now: Situation) -> None:
    place = {sample: k for k, sample in enumerate(now.order_of_the_pass())}
    for micro_batch in (m for step in now.plan() for m in micro_batches(step) if m):
        places = [place[i] for i in micro_batch]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(places) <= now.role.micro_batch_size


@reproducible
@given(situations())
def test_micro_batches_that_meet_are_neighbours_in_cost_and_the_costliest_come_first(now: Situation) -> None:
    for step in now.plan():
        slots = [[now.cost_of(micro_batch) for micro_batch in slot] for slot in zip(*step.ranks, strict=True)]
        assert all(min(before) >= max(after) for before, after in pairwise(slots))


@reproducible
@given(situations())
def test_the_slowest_rank_is_no_slower_than_if_micro_batches_were_dealt_out_in_turn(now: Situation) -> None:
    for step in now.plan():
        slowest = max(sum(map(now.cost_of, rank)) for rank in step.ranks)
        in_turn = sorted(map(now.cost_of, micro_batches(step)), reverse=True)[:: now.world_size]
        assert slowest <= sum(in_turn)


@reproducible
@given(situations(limits(static=False)))
def test_a_step_takes_no_longer_than_first_fit_packing_where_that_comes_out_even(now: Situation) -> None:
    for step in now.plan():
        first_fit = sorted(map(now.cost_of, now.first_fit(step.samples)), reverse=True)
        if len(first_fit) % now.world_size == 0:
            slots = [max(map(now.cost_of, slot)) for slot in zip(*step.ranks, strict=True)]
            assert sum(slots) <= sum(first_fit[:: now.world_size])


@reproducible
@given(situations())
def test_the_same_arguments_give_the_same_plan(now: Situation) -> None:
    assert now.plan() == now.plan()


@pytest.mark.parametrize("world", [2, 4, 8])
def test_realistic_lengths_are_spread_almost_evenly(world: int) -> None:
    lengths = np.random.default_rng(0).lognormal(6.3, 0.9, size=256).clip(50, 4000).astype(int).tolist()
    # About the quotient of a model of 0.6 billion parameters.
    now = Situation(batch_of(lengths), role(budget=8192), world, SampleCost(1, 1.3e-4, 0), None, 256)
    (step,) = now.plan()
    ranks = [sum(map(now.cost_of, rank)) for rank in step.ranks]
    slots = [max(map(now.cost_of, slot)) for slot in zip(*step.ranks, strict=True)]
    assert max(ranks) < 1.005 * sum(ranks) / world
    assert sum(slots) < 1.01 * sum(ranks) / world


def test_a_long_sample_weighs_as_much_as_its_attention() -> None:
    batch = batch_of([100] + [25] * 8)
    by_tokens = plan_step(list(range(9)), batch, role(budget=400), 2)
    assert [sum(batch.total_lengths[list(m)].sum() for m in rank) for rank in by_tokens.ranks] == [150, 150]
    by_cost = plan_step(list(range(9)), batch, role(budget=400), 2, SampleCost(1, 0.1, 0))
    assert by_cost.ranks == (((0,),), ((1, 2, 3, 4, 5, 6, 7, 8),))
    within_budget = plan_step(list(range(9)), batch, role(budget=150), 2, SampleCost(1, 0.1, 0))
    assert within_budget.ranks == (((0, 1, 2),), ((3, 4, 5, 6, 7, 8),))


def test_a_sample_beyond_the_budget_travels_alone() -> None:
    step = plan_step([0, 1, 2, 3], batch_of([4, 50, 3, 10]), role(budget=10), 1)
    assert step.ranks == (((1,), (3,), (0, 2)),)


def test_samples_are_packed_as_tight_as_the_budget_allows() -> None:
    batch = batch_of([6, 5, 5, 4, 4])
    assert len(micro_batches(plan_step(list(range(5)), batch, role(budget=10), 1))) == 3
    assert len(micro_batches(plan_step(list(range(5)), batch, role(budget=24), 1))) == 1


def test_first_fit_packing_stays_where_spreading_samples_would_take_longer() -> None:
    cost = SampleCost(per_token=10, per_token_pair=1, per_response_token=0)
    even = plan_step([0, 1, 2, 3, 4], batch_of([5, 7, 4, 2, 6]), role(budget=8), 2, cost)
    assert sorted(micro_batches(even)) == [(0,), (1,), (2,), (4, 3)]
    # Five bins, one short of whole ranks: of (5, 2) and (3, 0) the costlier is halved.
    odd = plan_step(list(range(7)), batch_of([4, 9, 2, 5, 2, 7, 9]), role(budget=10), 2, cost)
    assert sorted(micro_batches(odd)) == [(1,), (2,), (3, 0), (4,), (5,), (6,)]


def test_more_ranks_than_samples_leave_ranks_empty() -> None:
    assert plan_step([0, 1], batch_of([3, 5]), role(), 4).ranks == (((1,),), ((0,),), ((),), ((),))


@pytest.mark.parametrize("world", WORLDS)
def test_a_large_micro_batch_size_still_spreads_samples_evenly_over_ranks(world: int) -> None:
    step = plan_step(list(range(8)), batch_of([5] * 8), role(micro_batch_size=64), world)
    shares = [sum(map(len, rank)) for rank in step.ranks]
    assert max(shares) == -(-8 // world)
    assert min(shares) >= 8 // world


@pytest.mark.parametrize(
    ("size", "steps", "message"),
    [
        (4, None, "global_batch_size 4 does not divide the 6 rollouts"),
        (None, 4, "num_steps_per_rollout 4 does not divide the 6 rollouts"),
        (2, 2, "global_batch_size 2 and num_steps_per_rollout 2 contradict each other: this batch has 6 rollouts"),
    ],
)
def test_rollouts_that_do_not_fill_the_steps_are_refused(size: int | None, steps: int | None, message: str) -> None:
    for batch in (batch_of([5] * 6), batch_of([5] * 12, [i % 6 for i in range(12)])):
        with pytest.raises(ValueError, match=f"^{message}"):
            plan_pass(batch, role(size, steps=steps), 1)


def test_without_a_batch_size_or_a_number_of_steps_a_pass_is_one_step() -> None:
    assert [s.samples for s in plan_pass(batch_of([5] * 6), role(), 2)] == [(0, 1, 2, 3, 4, 5)]


def test_without_an_order_rollouts_are_taken_as_they_come() -> None:
    steps = plan_pass(batch_of([5] * 6, [9, 2, 9, 7, 7, 0]), role(2), 2)
    assert [step.samples for step in steps] == [(0, 1, 2), (3, 4, 5)]


def test_an_order_is_a_permutation_of_rollouts_given_by_its_seed() -> None:
    batch = batch_of([5] * 12, [i // 2 for i in range(12)])

    def order(seed: list[int]) -> list[int]:
        """The rollout of each step of a pass whose steps are single rollouts."""
        steps = plan_pass(batch, role(1), 2, np.random.default_rng(seed))
        return [int(batch.rollout_index[step.samples[0]]) for step in steps]

    assert order([0, 0]) == order([0, 0])
    assert order([0, 0]) != order([0, 1])
    assert sorted(order([0, 0])) == list(range(6))


SCHEDULES = [case for case in cases("12_dp_schedule") if "error" not in case.outputs]


def plan_like(case: Case, rollouts: set[int]) -> list[Step]:
    """Our plan of the samples of these rollouts, under the case's settings."""
    kept = [i for i, rollout in enumerate(case.inputs["rollout_ids"]) if rollout in rollouts]
    params = case.params
    budget = params["max_tokens_per_gpu"] * params["cp_size"] if params["use_dynamic_batch_size"] else None
    batch = batch_of([case.inputs["total_lengths"][i] for i in kept], [case.inputs["rollout_ids"][i] for i in kept])
    return plan_pass(batch, role(params["global_batch_size"], budget, params["micro_batch_size"]), params["dp_size"])


@pytest.mark.parametrize("case", SCHEDULES, ids=str)
def test_steps_and_their_samples_are_those_of_the_golden_schedule(case: Case) -> None:
    kept = {case.inputs["rollout_ids"][i] for i in case.outputs["kept_samples"]}
    steps = plan_like(case, kept)
    assert len(steps) == case.outputs["num_steps"]
    assert [set(step.samples) for step in steps] == [set(samples) for samples in case.outputs["samples_per_step"]]
    cap = case.outputs["cap_tokens"]
    for micro_batch in (m for step in steps for m in micro_batches(step) if len(m) > 1 and cap is not None):
        assert sum(case.inputs["total_lengths"][i] for i in micro_batch) <= cap
    if not case.params["balance_data"]:
        ours = [len(step.ranks[0]) for step in steps]
        assert all(n <= most for n, most in zip(ours, case.outputs["num_microbatches_per_rank"], strict=True))


@pytest.mark.parametrize("case", SCHEDULES, ids=str)
def test_where_the_golden_schedule_drops_trailing_rollouts_ours_raises(case: Case) -> None:
    if len(case.outputs["kept_samples"]) < len(case.inputs["total_lengths"]):
        with pytest.raises(ValueError, match="does not divide"):
            plan_like(case, set(case.inputs["rollout_ids"]))
    else:
        assert plan_like(case, set(case.inputs["rollout_ids"]))


def test_what_the_golden_schedule_refuses_for_its_number_of_ranks_runs_here() -> None:
    errors = {case.name: case for case in cases("12_dp_schedule") if "error" in case.outputs}
    for name in ("error_static_not_divisible", "error_fewer_samples_than_dp"):
        steps = plan_like(errors[name], set(errors[name].inputs["rollout_ids"]))
        assert [set(step.samples) for step in steps] == [set(range(len(errors[name].inputs["total_lengths"])))]
    few = errors["error_fewer_rollouts_than_global_batch"]
    with pytest.raises(ValueError, match="global_batch_size"):
        plan_like(few, set(few.inputs["rollout_ids"]))


def two_prompts_a_pair(samples: int) -> RolloutBatch:
    """Samples 2i and 2i + 1 answer the same prompt; each is a rollout of its own."""
    draw = np.random.default_rng(0)
    prompts = [[i, 1, 2] for i in range(samples // 2) for _ in range(2)]
    tokens = [[*prompt, *draw.integers(5, 9, size=2).tolist()] for prompt in prompts]
    return RolloutBatch.from_samples(tokens, [2] * samples, [[1, 1]] * samples, [0.0] * samples)


@pytest.mark.parametrize("prompts", [1, 3, 5])
def test_all_rollouts_of_a_prompt_are_held_out_and_the_rest_keeps_its_order(prompts: int) -> None:
    trained, held_out = hold_out(two_prompts_a_pair(12), prompts, seed=3, rollout_id=1)
    assert held_out is not None
    assert len(held_out) == 2 * prompts
    assert held_out.num_prompts == prompts
    assert not set(trained.sample_index // 2) & set(held_out.sample_index // 2)
    assert trained.sample_index.tolist() == sorted(set(range(12)) - set(held_out.sample_index))


def test_the_samples_of_a_rollout_stay_together_though_their_prompts_differ() -> None:
    batch = replace(random_batch(12), rollout_index=np.repeat(np.arange(6), 2)[::-1])
    trained, held_out = hold_out(batch, 5, seed=3, rollout_id=1)
    assert held_out is not None
    assert not set(trained.rollout_index) & set(held_out.rollout_index)


def test_what_is_held_out_is_drawn_anew_in_each_rollout() -> None:
    batch = random_batch(30)

    def drawn(seed: int, rollout_id: int) -> list[int]:
        held_out = hold_out(batch, 9, seed, rollout_id)[1]
        assert held_out is not None
        return list(held_out.sample_index)

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != sorted(pass_order(1, 0, 0).choice(30, 9, replace=False))


def test_holding_out_nothing_leaves_the_batch_as_it_is_and_holding_out_all_is_refused() -> None:
    batch = random_batch(4)
    assert hold_out(batch, 0, 1, 0) == (batch, None)
    with pytest.raises(ValueError, match=r"critic_holdout_fraction leaves none of the 4 prompts"):
        hold_out(batch, 4, 1, 0)
