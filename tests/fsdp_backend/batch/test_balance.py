"""Largest differencing: its invariants, and its distance from the best partition on small inputs."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_backend.batch.balance import balance

reproducible = settings(derandomize=True, deadline=None, max_examples=60)
costs_of_any_number = st.lists(st.integers(0, 1000), max_size=30)
parts_of_any_number = st.integers(1, 6)


def sums(costs: Sequence[float], partition: list[list[int]]) -> list[float]:
    return [sum(costs[i] for i in part) for part in partition]


def best_possible(costs: Sequence[float], parts: int, equal_count: bool) -> float:
    """The smallest largest sum of all partitions there are."""
    return min(
        max(sum(c for c, k in zip(costs, choice, strict=True) if k == part) for part in range(parts))
        for choice in product(range(parts), repeat=len(costs))
        if not equal_count or all(choice.count(part) * parts == len(costs) for part in range(parts))
    )


def greedy(costs: Sequence[float], parts: int) -> list[float]:
    """Sums of the obvious way: the largest cost left to the part with the smallest sum."""
    totals = [0.0] * parts
    for cost in sorted(costs, reverse=True):
        totals[totals.index(min(totals))] += cost
    return totals


@st.composite
def equal_counts(
    draw: st.DrawFn, number_of_parts: st.SearchStrategy[int] = parts_of_any_number, least: int = 0, most: int = 30
) -> tuple[list[int], int]:
    """Costs, and a number of parts that divides theirs."""
    parts = draw(number_of_parts)
    n = parts * draw(st.integers(least, most // parts))
    return draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)), parts


@reproducible
@given(costs_of_any_number, parts_of_any_number)
def test_every_position_stands_in_one_part_exactly_once(costs: list[int], parts: int) -> None:
    partition = balance(costs, parts, equal_count=False)
    assert len(partition) == parts
    assert sorted(i for part in partition for i in part) == list(range(len(costs)))


@reproducible
@given(equal_counts())
def test_with_equal_counts_every_part_has_one_of_each_group_of_neighbours_in_cost(case: tuple[list[int], int]) -> None:
    costs, parts = case
    partition = balance(costs, parts, equal_count=True)
    assert len(partition) == parts
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    group = {position: rank // parts for rank, position in enumerate(order)}
    assert all(sorted(group[i] for i in part) == list(range(len(costs) // parts)) for part in partition)
    assert sorted(i for part in partition for i in part) == list(range(len(costs)))


@reproducible
@given(equal_counts(), st.booleans())
def test_the_largest_sum_comes_first_and_positions_ascend(case: tuple[list[int], int], equal_count: bool) -> None:
    costs, parts = case
    partition = balance(costs, parts, equal_count)
    assert sums(costs, partition) == sorted(sums(costs, partition), reverse=True)
    assert partition == [sorted(part) for part in partition]


@reproducible
@given(equal_counts(), st.booleans())
def test_the_same_costs_give_the_same_parts(case: tuple[list[int], int], equal_count: bool) -> None:
    costs, parts = case
    assert balance(costs, parts, equal_count) == balance(list(map(float, costs)), parts, equal_count)


@reproducible
@given(st.lists(st.integers(0, 100), min_size=1, max_size=7), st.integers(2, 3))
def test_the_largest_sum_is_within_the_known_ratio_of_the_best(costs: list[int], parts: int) -> None:
    # 7/6 for two parts (Fischetti and Martello, 1987), 4/3 - 1/(3k) for k (Michiels et al., 2003).
    largest = max(sums(costs, balance(costs, parts, equal_count=False)))
    assert 3 * parts * largest <= (4 * parts - 1) * best_possible(costs, parts, equal_count=False)


@reproducible
@given(equal_counts(st.integers(2, 3), least=1, most=8))
def test_with_equal_counts_the_largest_sum_is_within_the_known_ratio_of_the_best(case: tuple[list[int], int]) -> None:
    # By the number of costs a part (Michiels, Korst, Aarts and van Leeuwen, STACS 2003; two are paired at best).
    ratio = {1: Fraction(1), 2: Fraction(1), 3: Fraction(4, 3), 4: Fraction(19, 12)}
    costs, parts = case
    largest = max(sums(costs, balance(costs, parts, equal_count=True)))
    assert largest <= ratio[len(costs) // parts] * Fraction(best_possible(costs, parts, equal_count=True))


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_sums_are_closer_than_those_of_the_greedy_way_on_average(parts: int) -> None:
    draw = np.random.default_rng(0)
    ours, obvious = [], []
    for _ in range(50):
        costs = draw.uniform(size=5 * parts).tolist()
        total = sums(costs, balance(costs, parts, equal_count=False))
        ours.append(max(total) - min(total))
        obvious.append(max(greedy(costs, parts)) - min(greedy(costs, parts)))
    assert np.mean(ours) < 0.5 * np.mean(obvious)


def test_the_worked_example_of_the_literature() -> None:
    # 8 and 7, then 6 and 5, then their differences: 1, 1 and 4, which leaves 2.
    costs = [8, 7, 6, 5, 4]
    assert sums(costs, balance(costs, 2, equal_count=False)) == [16, 14]


@reproducible
@given(st.lists(st.integers(0, 1000), max_size=8), parts_of_any_number)
def test_costs_that_each_come_once_a_part_are_divided_exactly(costs: list[int], parts: int) -> None:
    assert len(set(sums(costs * parts, balance(costs * parts, parts, equal_count=True)))) == 1


def test_without_equal_counts_one_large_cost_may_stand_against_many_small_ones() -> None:
    assert balance([1, 1, 5, 1, 1, 1], 2, equal_count=False) == [[0, 1, 3, 4, 5], [2]]


def test_parts_for_which_there_is_no_cost_are_empty() -> None:
    assert balance([], 3, equal_count=True) == balance([], 3, equal_count=False) == [[], [], []]
    assert balance([4.0], 3, equal_count=False) == [[0], [], []]


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="5 costs cannot be in 2 parts of equal count"):
        balance([1, 2, 3, 4, 5], 2, equal_count=True)
    with pytest.raises(ValueError, match="at least 1 part, got 0"):
        balance([1, 2], 0, equal_count=False)
