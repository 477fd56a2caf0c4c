#!/usr/bin/env python3
"""Collectives of this library beside PyTorch's Gloo, Open MPI, MPICH and Intel MPI, measured in one run.

    python benchmarks/allreduce_benchmark.py                            ResNet-50's gradients, then all_reduce
    python benchmarks/allreduce_benchmark.py --quick                    a first impression, half a minute
    python benchmarks/allreduce_benchmark.py --collective all_gather --sizes 1K,1M,64M --ranks 2,8
    python benchmarks/allreduce_benchmark.py --collective all --csv all.csv --json all.json --plot all.png

Every contender does the same work with the same number of processes: a sum in place (in place as well
wherever the collective allows it), root 0, buffers warm, results checked once on known values. Ours are
    core direct      the C++ core on memory from allocate(): peers reach it, nothing is copied
    core private     the C++ core on ordinary memory
    python direct    the first, called from Python on a tensor of collective_ops.empty()
The peers use ordinary memory, at several settings each (with and without yielding the processor, for one);
the fastest setting counts. Get them with `make bench-peers`; whoever is missing is left out.

Contenders take turns, round by round; a waiting one sleeps. Figures are medians over rounds. Ratios are
taken within a round, then the median: a drift of the machine's speed cancels. `spread` is what the same
program shows against itself. The limit is the memory traffic that the collective cannot avoid, at the
speed at which one thread per core sums in place without any synchronisation, measured in the same run.

Nothing else should run meanwhile. A table of a quiet machine, and what to make of it: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import cases, contenders, report
from harness.cases import Case
from harness.figures import OURS, Row, summarise
from harness.gradients import BYTES as GRADIENT_BYTES
from harness.gradients import LABELS as GRADIENT_LABELS
from harness.rank_group import GroupError
from harness.schedule import Bench, Contender, Effort

# Below this the limit is a matter of synchronisation, not of memory.
LIMIT_FROM = 2**20
PEER_NAMES = tuple(product.folder for product in contenders.PRODUCTS)


def parse_peers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in PEER_NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEER_NAMES)}, none")
    return names


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--collective",
        type=cases.parse_collectives,
        metavar="NAME",
        help=f"{', '.join(cases.COLLECTIVES)}; several with commas, or `all` (default all_reduce)",
    )
    add(
        "--sizes",
        type=cases.parse_sizes,
        help="bytes, as 4096,64K,1M: of the vector, or of all ranks' parts together (all_gather, "
        "reduce_scatter, gather, scatter, all_to_all); `sweep`, the default: 8 B to 256 MiB",
    )
    add("--ranks", type=cases.parse_ranks, help="numbers of ranks, as 2,4,8 (default)")
    add("--dtype", choices=cases.ITEM_BYTES, default="float32", help="element type (default float32)")
    add("--rounds", type=int, help="turns of each contender and size (default 7)")
    add("--quick", action="store_true", help="2 ranks, few sizes, 3 rounds, unless told otherwise")
    add("--gradients", action="store_true", help="ResNet-50's gradients: one call each, in buckets, by Gloo")
    add(
        "--peers",
        type=parse_peers,
        default=PEER_NAMES,
        metavar="NAMES",
        help=f"which of {','.join(PEER_NAMES)} (default all), or none",
    )
    add(
        "--core",
        type=Path,
        default=contenders.CORE,
        metavar="FILE",
        help="another build's collective_benchmark",
    )
    add("--csv", metavar="FILE", help="a line for each size and contender")
    add("--json", metavar="FILE", help="every round's time, with the machine and the summary")
    add("--plot", metavar="FILE", help="a picture (PNG, SVG or PDF) of time by size; needs matplotlib")
    return parser


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.gradients and options.collective:
        parser.error("--gradients is a case of its own; leave out --collective or --gradients")
    # Without a choice: what a user of the Python package gets first, then the sweep.
    chosen = bool(options.collective or options.sizes or options.quick)
    options.sweep = chosen or not options.gradients
    options.gradients = options.gradients or not chosen
    options.collective = options.collective or ("all_reduce",)
    options.sizes = options.sizes or (cases.QUICK if options.quick else cases.SWEEP)
    options.ranks = options.ranks or ((2,) if options.quick else (2, 4, 8))
    options.rounds = options.rounds or (3 if options.quick else 7)
    if options.rounds < 1:
        parser.error("--rounds starts at 1")
    return options


class Progress:
    """One line on standard error: overwritten on a terminal, silent elsewhere but for messages."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.terminal:
            seconds = time.monotonic() - self.begin
            print(f"\r\033[K{seconds:5.0f} s  {text}", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**30


def limit_seconds(case: Case, cores: int) -> float | None:
    """The least time of `case` on this machine; None where it is too small to be a matter of memory."""
    from collective_ops import _core

    if case.bytes < LIMIT_FROM or case.least_traffic() == 0:
        return None
    seconds = _core.inplace_reduce_seconds(case.ranks, case.bytes, cores)
    return seconds * case.least_traffic() / (2 * case.ranks * case.bytes) or None


def run(options: argparse.Namespace, cores: int, progress: Progress) -> tuple[list[Row], list[Row]]:
    """The rows of the sweep, and of the gradients; tables go to standard output as they come."""
    rows: list[Row] = []
    gradients: list[Row] = []
    effort = Effort(options.rounds, 0.01 if options.quick else 0.03)
    for ranks in options.ranks:
        with ExitStack() as stack:
            progress.show(f"starting {ranks} ranks of each contender")
            ours = contenders.ours(stack, ranks, options.core)
            others: list[Contender] = []
            if options.sweep:
                others = contenders.peers(stack, ranks, options.dtype, options.peers, progress.say)
                options.peers = tuple(name for name in options.peers if _present(name))

            def bench(measured: list[Contender], limit: Callable[[Case], float | None]) -> Bench:
                return Bench(measured, effort, available_bytes(), limit, progress.say)

            if options.gradients:
                progress.show(f"{ranks} ranks: ResNet-50's gradients")
                python = ours[-1].group
                ways = [Contender(way, python, way) for way in GRADIENT_LABELS]
                case = Case("resnet50", "float32", ranks, GRADIENT_BYTES)
                row = bench(ways, lambda case: None).measure(case)
                progress.clear()
                print(report.gradient_table(row), flush=True)
                gradients.append(row)
            if options.sweep:
                measured = bench(ours + others, lambda case: limit_seconds(case, cores))
                for collective in options.collective:
                    rows += sweep(measured, collective, ranks, options, cores, progress)
    return rows, gradients


def _present(folder: str) -> bool:
    """So that a missing peer is mentioned once."""
    return next(product.program().exists() for product in contenders.PRODUCTS if product.folder == folder)


def sweep(
    bench: Bench, collective: str, ranks: int, options: argparse.Namespace, cores: int, progress: Progress
) -> list[Row]:
    rows: list[Row] = []
    for case in cases.make_cases(collective, options.dtype, ranks, options.sizes):
        progress.show(f"{collective}, {ranks} ranks, {cases.show_size(case.bytes)}")
        row = bench.measure(case)
        progress.clear()
        if not rows:
            print(f"{report.title(row, cores)}\n{report.HEADER}")
        print(report.line(row), flush=True)
        rows.append(row)
    return rows


def machine(cores: int, load: float) -> dict[str, Any]:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {"cores": cores, "processor": model, "load_before": load, "load_after": os.getloadavg()[0]}


def main() -> int:
    options = parse()
    from collective_ops import _core

    # Ends like Ctrl-C, so that the ranks are ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cores, load = max(1, int(_core.usable_cores())), os.getloadavg()[0]
    print(f"{cores} cores; load before the run {load:.1f} (a busy machine spoils the figures)")
    if options.sweep:
        print(report.LEGEND)
    progress = Progress()
    try:
        rows, gradients = run(options, cores, progress)
    except GroupError as error:
        progress.say(f"allreduce_benchmark: {error}")
        return 1
    except KeyboardInterrupt:
        progress.say("interrupted; every rank was ended")
        return 130
    summary = summarise(rows, cores) + gradient_scaling(gradients, cores)
    print()
    for name, value in summary:
        print(f"{name}: {value:.2f}")
    if options.csv:
        report.write_csv(options.csv, rows)
    if options.json:
        every = [row.as_json() for row in rows + gradients]
        report.write_json(
            options.json, {"machine": machine(cores, load), "rows": every, "summary": dict(summary)}
        )
    if options.plot and rows:
        report.draw(options.plot, rows)
    # A peer may be missing or fail; ours may not.
    return 1 if any({*OURS, *GRADIENT_LABELS} & set(row.left_out) for row in rows + gradients) else 0


def gradient_scaling(rows: list[Row], cores: int) -> list[tuple[str, float]]:
    times = {row.case.ranks: row.median("shared") for row in rows}
    first = min(times, default=0)
    scaling = []
    for ranks, seconds in times.items():
        if ranks != first and seconds and times[first]:
            mark = f" (oversubscribed: {ranks} ranks on {cores} cores)" if ranks > cores else ""
            name = f"ResNet-50's gradients: weak-scaling efficiency, {first} to {ranks} ranks{mark}"
            scaling.append((name, times[first] / seconds))
    return scaling


if __name__ == "__main__":
    sys.exit(main())
