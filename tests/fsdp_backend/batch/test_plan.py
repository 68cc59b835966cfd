"""The invariants of a plan on many random batches, and its agreement with golden schedules."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from fsdp_backend.batch.columns import RolloutBatch
from fsdp_backend.batch.plan import Step, plan_pass, plan_step
from fsdp_backend.config import RoleConfig
from tests.golden import Case, cases

WORLDS = [1, 2, 3, 4]


def role(global_batch_size: int | None = None, budget: int | None = None, micro_batch_size: int = 1) -> RoleConfig:
    """Dynamic batches with a budget, static ones without."""
    return RoleConfig(
        hf_checkpoint="",
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        use_dynamic_batch_size=budget is not None,
        max_tokens_per_gpu=budget,
    )


def batch_of(lengths: list[int], rollouts: list[int] | None = None) -> RolloutBatch:
    """Samples of these total lengths, with one response token each."""
    return RolloutBatch.from_samples(
        [[0] * n for n in lengths], [1] * len(lengths), [[1]] * len(lengths), [0.0] * len(lengths), rollout_index=rollouts
    )


def random_rollouts(draw: np.random.Generator, rollouts: int) -> RolloutBatch:
    """Ragged samples, one to four a rollout, the siblings of a rollout not side by side."""
    index = np.repeat(draw.permutation(100)[:rollouts], draw.integers(1, 5, size=rollouts))
    draw.shuffle(index)
    return batch_of(draw.integers(2, 60, size=len(index)).tolist(), index.tolist())


def random_cases() -> Iterator[tuple[RolloutBatch, RoleConfig]]:
    """Random batches with a role that divides their rollouts into steps."""
    draw = np.random.default_rng(0)
    for _ in range(60):
        size, steps = int(draw.integers(1, 7)), int(draw.integers(1, 4))
        budget = int(draw.integers(20, 120)) if draw.random() < 0.6 else None
        yield random_rollouts(draw, size * steps), role(size, budget, int(draw.integers(1, 5)))


def micro_batches(step: Step) -> list[tuple[int, ...]]:
    return [micro_batch for rank in step.ranks for micro_batch in rank]


@pytest.mark.parametrize("world", WORLDS)
def test_every_sample_stands_in_a_pass_exactly_once(world: int) -> None:
    for batch, config in random_cases():
        steps = plan_pass(batch, config, world, np.random.default_rng(1))
        placed = Counter(i for step in steps for micro_batch in micro_batches(step) for i in micro_batch)
        assert placed == Counter(range(len(batch)))


@pytest.mark.parametrize("world", WORLDS)
def test_the_samples_of_a_rollout_stand_in_one_step_and_every_step_has_as_many_rollouts(world: int) -> None:
    for batch, config in random_cases():
        rollouts = [
            set(batch.rollout_index[list(s.samples)]) for s in plan_pass(batch, config, world, np.random.default_rng(1))
        ]
        assert all(len(step) == config.global_batch_size for step in rollouts)
        assert sum(map(len, rollouts)) == len(set.union(*rollouts)) == len(set(batch.rollout_index))


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_has_the_same_number_of_micro_batches(world: int) -> None:
    for batch, config in random_cases():
        for step in plan_pass(batch, config, world):
            assert len(step.ranks) == world
            assert len({len(rank) for rank in step.ranks}) == 1


@pytest.mark.parametrize("world", WORLDS)
def test_only_a_rank_with_too_little_to_do_gets_an_empty_micro_batch(world: int) -> None:
    for batch, config in random_cases():
        for step in plan_pass(batch, config, world):
            if () in micro_batches(step):
                assert max(map(len, micro_batches(step))) == 1
                assert micro_batches(step).count(()) < world


@pytest.mark.parametrize("world", WORLDS)
def test_a_micro_batch_of_several_samples_keeps_to_its_limit(world: int) -> None:
    for batch, config in random_cases():
        for step in plan_pass(batch, config, world):
            for micro_batch in micro_batches(step):
                if config.max_tokens_per_gpu is None:
                    assert len(micro_batch) <= config.micro_batch_size
                elif len(micro_batch) > 1:
                    assert batch.total_lengths[list(micro_batch)].sum() <= config.max_tokens_per_gpu


def test_a_sample_beyond_the_budget_travels_alone() -> None:
    step = plan_step([0, 1, 2, 3], batch_of([4, 50, 3, 10]), role(budget=10), 1)
    assert (1,) in micro_batches(step)
    assert (3,) in micro_batches(step)
    assert (0, 2) in micro_batches(step)


def test_samples_are_packed_as_tight_as_the_budget_allows() -> None:
    batch = batch_of([6, 5, 5, 4, 4])
    assert len(micro_batches(plan_step(list(range(5)), batch, role(budget=10), 1))) == 3
    assert len(micro_batches(plan_step(list(range(5)), batch, role(budget=24), 1))) == 1


def test_more_ranks_than_samples_leave_ranks_empty() -> None:
    assert plan_step([0, 1], batch_of([3, 5]), role(), 4).ranks == (((1,),), ((0,),), ((),), ((),))


@pytest.mark.parametrize("world", WORLDS)
def test_a_large_micro_batch_size_still_spreads_samples_evenly_over_ranks(world: int) -> None:
    step = plan_step(list(range(8)), batch_of([5] * 8), role(micro_batch_size=64), world)
    shares = [sum(map(len, rank)) for rank in step.ranks]
    assert max(shares) == -(-8 // world)
    assert min(shares) >= 8 // world


def test_rollouts_that_do_not_fill_the_last_step_are_refused() -> None:
    with pytest.raises(ValueError, match="global_batch_size 4 does not divide the 6 rollouts"):
        plan_pass(batch_of([5] * 6), role(4), 1)
    with pytest.raises(ValueError, match="global_batch_size 4 does not divide the 2 rollouts"):
        plan_pass(batch_of([5] * 8, [0] * 4 + [1] * 4), role(4), 1)


def test_without_a_global_batch_size_a_pass_is_one_step() -> None:
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


@pytest.mark.parametrize("world", WORLDS)
def test_the_steps_of_a_pass_do_not_depend_on_the_number_of_ranks(world: int) -> None:
    for batch, config in random_cases():
        here = [s.samples for s in plan_pass(batch, config, world, np.random.default_rng(3))]
        assert here == [s.samples for s in plan_pass(batch, config, 1, np.random.default_rng(3))]


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
