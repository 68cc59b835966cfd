"""Numbers into parts of nearly equal sums, by the largest differencing method.

N. Karmarkar and R. M. Karp, "The Differencing Method of Set Partitioning", report UCB/CSD-82-113, Berkeley, 1982. With equal
counts, its balanced form: W. Michiels, J. Korst, E. Aarts and J. van Leeuwen, "Performance Ratios for the Differencing Method
Applied to the Balanced Number Partitioning Problem", STACS 2003.
"""

import heapq
from collections.abc import Sequence
from itertools import count

Part = tuple[float, list[int]]
"""A sum, and the positions of the numbers in it."""


def balance(costs: Sequence[float], parts: int, equal_count: bool) -> list[list[int]]:
    """Positions of `costs` (none negative) in `parts` lists of nearly equal sums: the list of the largest sum first, each list
    ascending.

    With `equal_count` all lists are equally long; ValueError if that cannot be. Sorted by cost, the costs then fall into groups
    of `parts` neighbours, and every list holds one of each group.

    The method begins with a partition for each number alone (or each group, one number a part), and merges the two partitions
    whose sums differ most, the largest part of one with the smallest of the other, until one partition is left.
    """
    if parts < 1:
        raise ValueError(f"needs at least 1 part, got {parts}")
    if equal_count and len(costs) % parts:
        raise ValueError(f"{len(costs)} costs cannot be in {parts} parts of equal count")
    if not costs:
        return [[] for _ in range(parts)]
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    group = parts if equal_count else 1
    age = count()  # decides ties: the heap never compares partitions
    heap: list[tuple[float, int, list[Part]]] = []
    for start in range(0, len(order), group):
        filled: list[Part] = [(costs[i], [i]) for i in order[start : start + group]]
        empty: list[Part] = [(0.0, []) for _ in range(parts - group)]
        heap.append(_entry(filled + empty, next(age)))
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        merged = [(a + b, in_a + in_b) for (a, in_a), (b, in_b) in zip(one, reversed(other), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, _entry(merged, next(age)))
    return [sorted(members) for _, members in heap[0][2]]


def _entry(partition: list[Part], age: int) -> tuple[float, int, list[Part]]:
    """On the heap: the partition with the largest difference of sums comes first. `partition` has descending sums."""
    return partition[-1][0] - partition[0][0], age, partition
