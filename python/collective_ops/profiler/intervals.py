"""Sets of moments as sorted, disjoint lists of (begin, end) in int nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if result and begin <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def subtract(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """What is in `left` and not in `right`; both as `union` gives them."""
    result: list[Interval] = []
    first = 0
    for begin, end in left:
        while first < len(right) and right[first][1] <= begin:
            first += 1
        at = first
        while at < len(right) and right[at][0] < end:
            if right[at][0] > begin:
                result.append((begin, right[at][0]))
            begin = max(begin, right[at][1])
            at += 1
        if begin < end:
            result.append((begin, end))
    return result


def clip(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    return [(max(a, begin), min(b, end)) for a, b in intervals if a < end and b > begin]


def length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
