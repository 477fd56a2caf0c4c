"""Statistics over the rounds of one case.

Contenders are measured in turn, round by round, so that a drift of the machine's speed meets them all;
comparisons are made within a round (paired), then the median over rounds is taken.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .cases import Case

# Names of contenders; peers have others.
DIRECT, DIRECT_AGAIN, PRIVATE = "core direct", "core direct again", "core private"
PYTHON, PYTHON_PRIVATE, GLOO = "python direct", "python private", "gloo"
OURS = (DIRECT, DIRECT_AGAIN, PRIVATE, PYTHON, PYTHON_PRIVATE)
# A size is lost where the paired ratio to the best peer is above this, and above the spread.
TOLERANCE = 1.05


@dataclass
class Row:
    """One case: seconds per call, by contender and round. A contender may have fewer rounds than others."""

    case: Case
    seconds: dict[str, list[float]]
    limit_seconds: float | None = None
    products: dict[str, str] = field(default_factory=dict)  # of peers: the product of each setting
    left_out: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        values = self.seconds.get(name)
        return statistics.median(values) if values else None

    def peers(self) -> list[str]:
        return [name for name in self.products if self.seconds.get(name)]

    def best_peer(self, product: str | None = None) -> str | None:
        """The fastest setting, of one product or of all."""
        names = [name for name in self.peers() if product in (None, self.products[name])]
        return min(names, key=lambda name: statistics.median(self.seconds[name]), default=None)

    def ratio(self, name: str, to: str | None) -> float | None:
        """Time of `name` over time of `to`: below 1, `name` is faster. The median over common rounds."""
        if to is None or not self.seconds.get(name) or not self.seconds.get(to):
            return None
        return paired_ratio(self.seconds[name], self.seconds[to])

    def spread(self) -> float | None:
        """Of the C++ core against itself: half of its pairs lie within this factor."""
        if not self.seconds.get(DIRECT) or not self.seconds.get(DIRECT_AGAIN):
            return None
        return pair_spread(self.seconds[DIRECT], self.seconds[DIRECT_AGAIN])

    def lost(self, name: str) -> bool:
        """Whether `name` is slower than the best peer by more than noise."""
        ratio = self.ratio(name, self.best_peer())
        return ratio is not None and ratio > max(TOLERANCE, self.spread() or 1.0)

    def share_of_limit(self, name: str) -> float | None:
        median = self.median(name)
        return self.limit_seconds / median if self.limit_seconds and median else None

    def as_json(self) -> dict[str, Any]:
        return {
            "collective": self.case.collective,
            "dtype": self.case.dtype,
            "ranks": self.case.ranks,
            "bytes": self.case.bytes,
            "limit_seconds": self.limit_seconds,
            "seconds": self.seconds,
            "products": self.products,
            "left_out": self.left_out,
        }


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=False))


def pair_spread(first: Sequence[float], second: Sequence[float]) -> float:
    logs = [abs(math.log(a / b)) for a, b in zip(first, second, strict=False)]
    return math.exp(statistics.median(logs))


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None


def summarise(rows: Sequence[Row], cores: int) -> list[tuple[str, float]]:
    """What a reader wants to know of many rows: means, sizes lost, scaling."""
    summary: list[tuple[str, float]] = []
    groups = dict.fromkeys((row.case.collective, row.case.ranks) for row in rows)
    for collective, ranks in groups:
        chosen = [row for row in rows if (row.case.collective, row.case.ranks) == (collective, ranks)]
        where = f"{collective}, {ranks} ranks"
        for name in (DIRECT, PRIVATE):
            for what, other in (("the best peer", lambda row: row.best_peer()), ("gloo", lambda row: GLOO)):
                ratios = [ratio for row in chosen if (ratio := row.ratio(name, other(row)))]
                mean = geometric_mean([1 / ratio for ratio in ratios])
                if mean is not None:
                    summary.append((f"{where}: {name}, times the speed of {what}, mean over sizes", mean))
        for name in (DIRECT, PRIVATE) if any(row.best_peer() for row in chosen) else ():
            lost = sum(row.lost(name) for row in chosen)
            summary.append((f"{where}: {name}, sizes lost to the best peer, of {len(chosen)}", lost))
        extra = python_overhead(chosen)
        if extra is not None:
            summary.append((f"{where}: microseconds more through Python, up to 4 KiB", extra * 1e6))
    return summary + weak_scaling(rows, cores)


def python_overhead(rows: Sequence[Row]) -> float | None:
    """Seconds per call that Python adds: the median over small sizes."""
    added = []
    for row in rows:
        python, core = row.median(PYTHON), row.median(DIRECT)
        if row.case.bytes <= 4096 and python is not None and core is not None:
            added.append(python - core)
    return statistics.median(added) if added else None


def weak_scaling(rows: Sequence[Row], cores: int) -> list[tuple[str, float]]:
    """Time of the fewest ranks over time of more, at the largest size: each rank keeps its bytes."""
    result = []
    for collective in dict.fromkeys(row.case.collective for row in rows):
        chosen = [row for row in rows if row.case.collective == collective]
        size = max(row.case.bytes for row in chosen)
        times = {row.case.ranks: row.median(DIRECT) for row in chosen if row.case.bytes == size}
        first = min(times)
        for ranks, seconds in sorted(times.items()):
            if ranks != first and seconds and times[first]:
                mark = f" (oversubscribed: {ranks} ranks on {cores} cores)" if ranks > cores else ""
                name = f"{collective}: weak-scaling efficiency, {first} to {ranks} ranks{mark}"
                result.append((name, times[first] / seconds))
    return result
