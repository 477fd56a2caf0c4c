"""Clocks of several hosts, from the calls that their ranks made together.

No rank leaves a collective that gives every rank something of all before the last one has come to it. So
between hosts A and B each call bounds how far B's clock is ahead: by at least (begin on B - end on A), at
most (end on B - begin on A). A clock that is off and runs a little faster or slower is a straight line
between these bounds; taken is the one that stays furthest from all of them, and its error is how far any
other line that fits them is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .model import Call, RankData

# Collectives that no rank leaves before all have come.
_JOINT = {"barrier", "allReduce", "allGather", "reduceScatter", "alltoall"}
_JOINT |= {f"{kind}V" for kind in _JOINT}
_STEEPEST = 1e-3  # of a clock that is usable at all: 1 ms per second
_ROUNDS = 200
_FLAT_NS = 1e6  # over less than a millisecond nothing is known of the speed

Bound = tuple[int, int, int]  # time, least and most that the clock is ahead


@dataclass(frozen=True)
class Clock:
    """How far a clock is ahead of the reference's: `offset_ns` at the time `at_ns`, and `drift` ns more per
    ns."""

    at_ns: int
    offset_ns: int
    drift: float
    error_ns: int  # at most, in the time of the calls
    calls: int

    def correction(self, time: int) -> int:
        """What this clock's `time` is to be reduced by."""
        return self.offset_ns + round(self.drift * (time - self.at_ns))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def bounds(reference: Iterable[Call], other: Iterable[Call]) -> list[Bound]:
    """Of the calls that both made: by group, kind and sequence."""
    known = {(c.group, c.kind, c.sequence): c for c in reference if c.kind in _JOINT and c.status == "ok"}
    found = []
    for call in other:
        same = known.get((call.group, call.kind, call.sequence))
        if same is not None and call.status == "ok":
            found.append((call.end, call.start - same.end, call.end - same.start))
    return sorted(found)


def fit(found: Sequence[Bound]) -> Clock | None:
    """None: there are no bounds, or no clock that runs evenly fits them."""
    if not found:
        return None
    at, span = found[0][0], found[-1][0] - found[0][0]
    # Small numbers, so that nothing is lost in float64.
    base = (found[0][1] + found[0][2]) // 2
    rows = [(float(time - at), float(least - base), float(most - base)) for time, least, most in found]

    def room(drift: float) -> tuple[float, float]:
        return max(r[1] - drift * r[0] for r in rows), min(r[2] - drift * r[0] for r in rows)

    def slack(drift: float) -> float:
        least, most = room(drift)
        return most - least

    steepest = _STEEPEST if span > _FLAT_NS else 0.0
    drift = _highest(slack, -steepest, steepest)
    least, most = room(drift)
    if most < least:
        return None
    offset = (least + most) / 2
    slowest = _edge(slack, drift, -steepest)
    fastest = _edge(slack, drift, steepest)
    error = 0.0
    for time in (0.0, float(span)):
        here = offset + drift * time
        upper = _highest(lambda d, t=time: room(d)[1] + d * t, slowest, fastest)
        lower = _highest(lambda d, t=time: -room(d)[0] - d * t, slowest, fastest)
        error = max(error, room(upper)[1] + upper * time - here, here - room(lower)[0] - lower * time)
    return Clock(at, base + round(offset), drift, int(error) + 1, len(found))


def _highest(value: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is largest."""
    for _ in range(_ROUNDS):
        if high - low < 1e-13:
            break
        third = (high - low) / 3
        if value(low + third) < value(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _edge(slack: Callable[[float], float], inside: float, outside: float) -> float:
    """How far towards `outside` the slack stays above zero."""
    if slack(outside) >= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if slack(middle) >= 0 else (inside, middle)
    return inside


def align(ranks: Sequence[tuple[str, Sequence[Call]]]) -> dict[str, Clock]:
    """Of each rank its host and its calls. By host, those but the first rank's: what to take off its ranks'
    times. A host without a common call, or with bounds that nothing fits, is not in it. Bounds of all pairs
    of ranks of two hosts count together."""
    hosts: dict[str, list[Sequence[Call]]] = {}
    for host, calls in ranks:
        hosts.setdefault(host, []).append(calls)
    (_, reference), *others = hosts.items()
    clocks = {}
    for host, members in others:
        found = [bound for one in reference for other in members for bound in bounds(one, other)]
        clock = fit(sorted(found))
        if clock is not None:
            clocks[host] = clock
    return clocks


def apply(data: RankData, clock: Clock) -> None:
    """All times of a rank on the reference's clock."""

    def at(time: int) -> int:
        return time - clock.correction(time)

    seen: set[int] = set()
    for step in data.steps:
        step.begin, step.end = at(step.begin), at(step.end)
        step.activity = [(thread, at(begin), at(end), kind) for thread, begin, end, kind in step.activity]
        step.resident = tuple((at(time), size) for time, size in step.resident)
        for change in step.allocations:
            change.time = at(change.time)
        for operator in (*step.operators, *step.functions, *step.annotations):
            operator.start, operator.end = at(operator.start), at(operator.end)
        for call in step.calls:
            if id(call) not in seen:  # one that runs on into the next step
                seen.add(id(call))
                _move(call, at)


def _move(call: Call, at: Callable[[int], int]) -> None:
    call.start, call.end, call.issued = at(call.start), at(call.end), at(call.issued)
    call.steps = [step.moved_to(at(step.start)) for step in call.steps]
    if call.waited is not None:  # a faster clock has measured more of both
        call.waited = min(call.waited, call.end - call.start)
