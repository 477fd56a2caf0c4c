"""Every algorithm of a call timed, and the tuning table that follows from it.

The native program `_tune` times them (tools/tune/sweep.h); a table is what src/tuner/table.h says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

COLLECTIVES = "all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all".split()
# With a root, the plan that looks at memory that peers can reach in place of a slot. (All others look at all
# announcements, so they find out together that nobody has copied.)
IN_PLACE_OF_SLOT = {"broadcast": "direct", "reduce": "pull", "gather": "direct", "scatter": "direct"}
FIRST_LINES = "collective-ops tuning table 1\n# collective element ranks from shared private\n"
# A plan is left for another one only where that is better by more than this: tables stay short, and a
# measurement's noise does not decide.
WORTH_IT = 1.06


@dataclass
class Point:
    """One algorithm of a call of one size, as `_tune sweep` timed it."""

    collective: str
    ranks: int
    bytes: int
    shared: bool
    algorithm: str
    path: str
    chosen: bool
    ordered: bool
    us: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        """Microseconds: the lower quartile of the rounds. Other programs only ever add time."""
        return sorted(self.us)[len(self.us) // 4]

    @property
    def word(self) -> str:
        """As tables name it."""
        return "read" if self.path == "read" else self.algorithm


def rows_of(points: Iterable[Point]) -> list[tuple[str, int, int, str, str]]:
    """(collective, ranks, from bytes, shared, private): for each group of ranks the best pairs by size.

    Only plans that keep the order of ranks take part. A limit lies between two sizes that were measured.
    """
    cases: dict[tuple[str, int], dict[int, list[Point]]] = {}
    for point in points:
        if point.ordered and point.algorithm != "auto":
            cases.setdefault((point.collective, point.ranks), {}).setdefault(point.bytes, []).append(point)
    rows = []
    for collective in COLLECTIVES:
        for ranks in sorted(ranks for name, ranks in cases if name == collective):
            last: tuple[str, str] | None = None
            before = 0
            for size, candidates in sorted(cases[collective, ranks].items()):
                pair = _best_pair(collective, candidates, last)
                if pair != last:
                    rows.append((collective, ranks, int(math.sqrt(before * size)), *pair))
                last, before = pair, size
    return rows


def _best_pair(collective: str, candidates: Sequence[Point], last: tuple[str, str] | None) -> tuple[str, str]:
    """What to take on shared and on private memory, of the pairs that a communicator can tell apart."""
    times = {
        shared: {one.word: one.time for one in candidates if one.shared == shared} for shared in (True, False)
    }
    # Where the kernel forbids reads, the staged plan runs instead, which counts a quarter.
    staged = next((times[False][name] for name in ("two_shot", "staged") if name in times[False]), None)
    if "read" in times[False] and staged is not None:
        times[False]["read"] = times[False]["read"] ** 0.75 * staged**0.25
    best = {shared: min(found.values()) for shared, found in times.items()}
    costs = {}
    for shared, shared_time in times[True].items():
        for private, private_time in times[False].items():
            if not _can_be(collective, shared, private):
                continue
            lost = [shared_time / best[True], private_time / best[False]]
            costs[shared, private] = max(lost) * math.sqrt(lost[0] * lost[1])
    winner = min(costs, key=costs.__getitem__)
    if last in costs and costs[last] <= costs[winner] * WORTH_IT:
        return last
    return winner


def _can_be(collective: str, shared: str, private: str) -> bool:
    if shared == private:
        return True
    if shared == "one_shot":
        return False
    if private == "one_shot" and collective in IN_PLACE_OF_SLOT:
        return shared == IN_PLACE_OF_SLOT[collective]
    return shared in ("direct", "push", "pull")


def table_text(rows: Iterable[tuple[str, int, int, str, str]], element: str = "*") -> str:
    lines = [
        f"{name} {element} {ranks} {start} {shared} {private}" for name, ranks, start, shared, private in rows
    ]
    return FIRST_LINES + "".join(line + "\n" for line in lines)
