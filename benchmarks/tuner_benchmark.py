"""How good the tuner's choices and the predicted times are: every algorithm timed at every size.

    python benchmarks/tuner_benchmark.py      # all collectives, 2, 4 and 8 ranks: some minutes
    python benchmarks/tuner_benchmark.py --collective all_reduce --ranks 2 --sizes 64,64K,4M
    python benchmarks/tuner_benchmark.py --save sweep.json      # and --load sweep.json, to look at it again

A point is a collective, a number of ranks, a size, and memory that the ranks share or not. Algorithms take
turns, each with a batch of calls in every round; the time is the lower quartile of the rounds, on the slowest
rank. A choice counts as right where it is within 10 % of the best algorithm's time, or within the noise of
the point: what the same algorithm differs from itself, timed as two contenders. Best is meant of those that
may be taken on one host: what reduces in the order of ranks, or reduces nothing. Predicted are all times, by
the cost model with the numbers of `collective-ops tune`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from collective_ops import sweep, tune  # noqa: E402

RIGHT = 1.10


@dataclass
class Choice:
    collective: str
    ranks: int
    bytes: int
    shared: bool
    taken: str
    best: str
    ratio: float  # of the times of taken and best
    noise: float  # of the taken one against itself

    @property
    def right(self) -> bool:
        return self.ratio <= max(RIGHT, self.noise)


def choices_of(points: Iterable[sweep.Point]) -> list[Choice]:
    cases: dict[tuple[str, int, int, bool], list[sweep.Point]] = {}
    for point in points:
        cases.setdefault((point.collective, point.ranks, point.bytes, point.shared), []).append(point)
    choices = []
    for (collective, ranks, size, shared), contenders in cases.items():
        candidates = [one for one in contenders if one.algorithm != "auto" and one.ordered]
        taken = next((one for one in candidates if one.chosen), None)
        auto = next((one for one in contenders if one.algorithm == "auto"), None)
        if taken is None or auto is None:
            continue
        best = min(candidates, key=lambda one: one.time)
        # The communicator's own choice is the same work, so the two are one algorithm timed twice.
        noise = max(auto.time, taken.time) / min(auto.time, taken.time)
        time = min(auto.time, taken.time)
        choices.append(
            Choice(collective, ranks, size, shared, taken.word, best.word, max(time / best.time, 1.0), noise)
        )
    return choices


def predicted_errors(
    points: Sequence[sweep.Point], machine: dict[str, object]
) -> list[tuple[sweep.Point, float]]:
    """(point, |predicted / measured - 1|) of every algorithm that was timed."""
    cases: dict[tuple[str, int, bool], list[sweep.Point]] = {}
    for point in points:
        if point.algorithm != "auto":
            cases.setdefault((point.collective, point.ranks, point.shared), []).append(point)
    errors = []
    for (collective, ranks, shared), members in cases.items():
        sizes = sorted({one.bytes for one in members})
        prices = tune.prices(machine, collective, sizes, ranks, shared=shared)
        for one in members:
            predicted = prices.get((one.bytes, one.algorithm))
            if predicted is not None:
                errors.append((one, abs(predicted / 1e3 / one.time - 1)))
    return errors


def report(points: Sequence[sweep.Point], machine: dict[str, object]) -> str:
    choices = choices_of(points)
    errors = predicted_errors(points, machine)
    lines = [
        f"{'collective':<15} {'ranks':>5} {'points':>6} {'right':>6} {'worst':>6}"
        f" {'timed':>6} {'median error':>13}"
    ]
    for collective in sweep.COLLECTIVES:
        for ranks in sorted({one.ranks for one in points}):
            some = [one for one in choices if (one.collective, one.ranks) == (collective, ranks)]
            off = [error for one, error in errors if (one.collective, one.ranks) == (collective, ranks)]
            if some:
                lines.append(f"{collective:<15} {ranks:>5} {_row(some, off)}")
    lines.append(f"{'all':<15} {'':>5} {_row(choices, [error for _, error in errors])}")
    wrong = sorted((one for one in choices if not one.right), key=lambda one: -one.ratio)
    if wrong:
        lines += ["", "choices that are not right, the worst first:"]
    for one in wrong:
        memory = "shared" if one.shared else "private"
        lines.append(
            f"  {one.collective:<15} {one.ranks} ranks {one.bytes:>9} B {memory:<8} took {one.taken:<10}"
            f" best {one.best:<10} {one.ratio:.2f} (noise {one.noise:.2f})"
        )
    return "\n".join(lines)


def _row(choices: Sequence[Choice], errors: Sequence[float]) -> str:
    right = sum(one.right for one in choices) / len(choices)
    error = f"{statistics.median(errors):.1%}" if errors else "-"
    worst = max(one.ratio for one in choices)
    return f"{len(choices):>6} {right:>6.1%} {worst:>6.2f} {len(errors):>6} {error:>13}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collective", default=",".join(sweep.COLLECTIVES))
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default=",".join(map(str, tune.TABLE_SIZES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=2)
    parser.add_argument("--save", type=Path, help="the times, as JSON")
    parser.add_argument(
        "--load", type=Path, action="append", default=[], help="instead of timing; may be repeated"
    )
    options = parser.parse_args()
    print(f"load before the run: {os.getloadavg()[0]:.2f}", file=sys.stderr)
    machine = tune.read_machine()
    points: list[sweep.Point] = []
    for file in options.load:
        points += [sweep.Point(**one) for one in json.loads(file.read_text())]
    if not options.load:
        sizes = [tune.parse_size(word) for word in options.sizes.split(",")]
        for ranks in map(int, options.ranks.split(",")):
            for collective in options.collective.split(","):
                print(f"{collective}, {ranks} ranks", file=sys.stderr)
                points += tune.sweep_points(
                    collective, ranks, sizes, rounds=options.rounds, batch_ms=options.batch_ms
                )
    if options.save is not None:
        options.save.write_text(json.dumps([asdict(one) for one in points]))
    print(report(points, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
