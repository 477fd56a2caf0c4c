#!/usr/bin/env python3
"""Costs beside the speed of a call, each measured in turn with what it is compared with.

    python benchmarks/costs_benchmark.py
    python benchmarks/costs_benchmark.py --only setup,wait --json costs.json

    setup       time to connect 8 ranks that have imported everything, and to the first barrier's end; Gloo
                where ranks find each other by a file, and by a TCP store, as under torchrun
    wait        share of a core that a rank uses while it waits for a late one, after the first millisecond;
                the same of a rank between calls; Gloo
    trace       microseconds per all_reduce that COLLECTIVE_OPS_TRACE=1 adds (C++ core, shared memory)
    bfloat16    time per byte of a bfloat16 sum over that of a float32 sum (C++ core, shared memory)

Nothing else should run meanwhile; docs/benchmarks.md says how the figures are taken.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import contenders, report
from harness.cases import parse_size, show_size
from harness.figures import pair_spread, paired_ratio
from harness.rank_group import GroupError, RankGroup

WAYS = ("ours", "gloo", "gloo-tcp")
COSTS = ("setup", "wait", "trace", "bfloat16")
TRACE_SIZES = (8, 2**14, 2**20)
TYPE_SIZES = (2**16, 2**20, 2**24, 2**26)


def parse_costs(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in COSTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COSTS)}")
    return names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", type=parse_costs, default=COSTS, metavar="COSTS", help=f"some of {','.join(COSTS)}")
    add("--ranks", type=int, default=8, help="of setup and wait (default 8)")
    add("--rounds", type=int, default=9, help="turns of each contender (default 9)")
    add("--seconds", type=float, default=2.0, help="that a rank is late, of wait (default 2)")
    add("--sizes", help="bytes, as 8,64K,1M, of trace and bfloat16 (defaults as the tables show)")
    add(
        "--core",
        type=Path,
        default=contenders.CORE,
        metavar="FILE",
        help="another build's collective_benchmark",
    )
    add("--json", metavar="FILE", help="write the figures")
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--ranks starts at 2, --rounds at 1, --seconds above 0")
    if options.sizes is not None:
        try:
            options.sizes = tuple(parse_size(item) for item in options.sizes.split(","))
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    return options


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def begin() -> float:
    """When ranks that are told now can begin together, so that telling them is not what is measured."""
    return time.monotonic() + 0.05


def measure_setup(group: RankGroup, rounds: int) -> dict[str, float]:
    """Medians of seconds to connect and to the end of the first barrier, of each."""
    connect: dict[str, list[float]] = {who: [] for who in WAYS}
    first: dict[str, list[float]] = {who: [] for who in WAYS}
    for number in range(rounds):
        for who in WAYS:
            for order, times in (("connect", connect), ("join", first)):
                where = free_port() if who == "gloo-tcp" else f"{order}{number}"
                times[who].append(group.order(f"at {begin()} {order} {who} {where}"))
                group.order(f"close {who}")
    result: dict[str, float] = {}
    for who in WAYS:
        result[f"{who} connect"] = statistics.median(connect[who])
        result[f"{who} to the first barrier"] = statistics.median(first[who])
        result[f"times faster than {who}"] = paired_ratio(first[who], first["ours"])
    return result


def print_setup(figures: dict[str, float], ranks: int) -> None:
    print(f"\nset-up of {ranks} ranks, milliseconds, median")
    print(f"  {'':<10}{'connect':>10}{'to the first barrier':>24}{'ours is faster':>18}")
    for who in WAYS:
        first, faster = figures[f"{who} to the first barrier"], figures[f"times faster than {who}"]
        print(f"  {who:<10}{figures[f'{who} connect'] * 1e3:>10.2f}{first * 1e3:>24.2f}{faster:>12.1f} times")


def measure_wait(group: RankGroup, seconds: float) -> dict[str, float]:
    """Shares of a core, of the rank that used most."""
    result = {}
    for who in ("ours", "gloo"):
        group.order(f"connect {who} wait")
        group.order(f"barrier {who}")
        result[f"{who} waiting"] = group.order(f"wait {who} {seconds}")
        result[f"{who} idle"] = group.order(f"idle {seconds}")
        group.order(f"close {who}")
    return result


def print_wait(figures: dict[str, float], seconds: float) -> None:
    print(f"\nshare of a core that a rank uses during {seconds:g} s, the rank that used most")
    print(f"  {'':<8}{'waiting in a barrier':>24}{'idle between calls':>22}")
    for who in ("ours", "gloo"):
        print(f"  {who:<8}{figures[f'{who} waiting']:>24.2%}{figures[f'{who} idle']:>22.2%}")


def all_reduce_turn(group: RankGroup, dtype: str, size: int, seconds: float = 0.03) -> Callable[[], float]:
    """Warms up an all_reduce; what is returned measures one batch: seconds per call."""
    group.order(f"case all_reduce {dtype} shared {size}")
    group.order("check shared")
    calls = 4
    while (spent := group.order(f"run shared {calls}")) < seconds / 2 and calls < 20_000:
        calls *= 2
    calls = max(2, round(calls * seconds / max(spent, 1e-9)))
    return lambda: group.order(f"run shared {calls}") / calls


def take_turns(turns: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(turns) if number % 2 == 0 else reversed(turns):
            taken[name].append(turns[name]())
    return taken


def measure_trace(core: Path, sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    lines = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tracing = {"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": folder}
        off = stack.enter_context(contenders.start_core(2, core))
        on = stack.enter_context(contenders.start_core(2, core, tracing))
        for size in sizes:
            plain = all_reduce_turn(off, "float32", size)
            turns = {"off": plain, "on": all_reduce_turn(on, "float32", size), "off again": plain}
            taken = take_turns(turns, rounds)
            added = statistics.median(b - a for a, b in zip(taken["off"], taken["on"], strict=True))
            lines.append(
                {
                    "bytes": size,
                    "off_us": statistics.median(taken["off"]) * 1e6,
                    "on_us": statistics.median(taken["on"]) * 1e6,
                    "added_us": added * 1e6,
                    "ratio": paired_ratio(taken["on"], taken["off"]),
                    "spread": pair_spread(taken["off"], taken["off again"]),
                }
            )
    return lines


def print_trace(lines: list[dict[str, Any]]) -> None:
    print("\ntracing, all_reduce, 2 ranks, microseconds per call")
    print(f"  {'size':>9}{'off':>12}{'on':>12}{'added':>10}{'ratio':>8}{'spread':>8}")
    for line in lines:
        print(
            f"  {show_size(line['bytes']):>9}{line['off_us']:>12.3f}{line['on_us']:>12.3f}"
            f"{line['added_us']:>10.3f}{line['ratio']:>8.3f}{line['spread']:>8.3f}"
        )


def measure_types(core: Path, sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    lines = []
    with ExitStack() as stack:
        float32, bfloat16 = (stack.enter_context(contenders.start_core(2, core)) for _ in range(2))
        for size in sizes:
            plain = all_reduce_turn(float32, "float32", size)
            turns = {
                "float32": plain,
                "bfloat16": all_reduce_turn(bfloat16, "bfloat16", size),
                "float32 again": plain,
            }
            taken = take_turns(turns, rounds)
            lines.append(
                {
                    "bytes": size,
                    "float32_us": statistics.median(taken["float32"]) * 1e6,
                    "bfloat16_us": statistics.median(taken["bfloat16"]) * 1e6,
                    "ratio": paired_ratio(taken["bfloat16"], taken["float32"]),
                    "spread": pair_spread(taken["float32"], taken["float32 again"]),
                }
            )
    return lines


def print_types(lines: list[dict[str, Any]]) -> None:
    print("\nbfloat16 beside float32, the same bytes, all_reduce, 2 ranks, microseconds per call")
    print(f"  {'size':>9}{'float32':>12}{'bfloat16':>12}{'ratio':>8}{'spread':>8}")
    for line in lines:
        print(
            f"  {show_size(line['bytes']):>9}{line['float32_us']:>12.2f}{line['bfloat16_us']:>12.2f}"
            f"{line['ratio']:>8.2f}{line['spread']:>8.2f}"
        )


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if {"setup", "wait"} & set(options.only):
        with ExitStack() as stack:
            group = contenders.start_python(stack, options.ranks, "harness.cost_ranks")
            if "setup" in options.only:
                figures["setup"] = measure_setup(group, options.rounds)
                print_setup(figures["setup"], options.ranks)
            if "wait" in options.only:
                figures["wait"] = measure_wait(group, options.seconds)
                print_wait(figures["wait"], options.seconds)
    if "trace" in options.only:
        figures["trace"] = measure_trace(options.core, options.sizes or TRACE_SIZES, options.rounds)
        print_trace(figures["trace"])
    if "bfloat16" in options.only:
        figures["bfloat16"] = measure_types(options.core, options.sizes or TYPE_SIZES, options.rounds)
        print_types(figures["bfloat16"])
    return figures


def main() -> int:
    options = parse()
    # Ends like Ctrl-C, so that the ranks are ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"load before the run {os.getloadavg()[0]:.1f} (a busy machine spoils the figures)")
    try:
        figures = run(options)
    except GroupError as error:
        print(f"costs_benchmark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; every rank was ended", file=sys.stderr)
        return 130
    if options.json:
        report.write_json(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
