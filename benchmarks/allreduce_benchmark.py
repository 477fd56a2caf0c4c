#!/usr/bin/env python3
"""All-reduce of this library beside PyTorch's Gloo, in one run, batch by batch in turn.

    python benchmarks/allreduce_benchmark.py                      ResNet-50's 161 gradients
    python benchmarks/allreduce_benchmark.py --sizes 1K,1M,64M --ranks 2,8
    python benchmarks/allreduce_benchmark.py --sizes sweep --json result.json

All contenders reduce float32 in place with "sum", the same number of ranks and bytes each:
    shared    our allreduce on memory of collective_ops.empty(): nothing is copied
    private   our allreduce on ordinary tensors
    gloo      torch.distributed.all_reduce on ordinary tensors

Figures are medians over batches; `x` columns are medians of the ratios of neighbouring batches, so
that a drift of the machine's speed cancels; `spread` is the same ratio of one contender against itself.
The limit is the in-place kernel that reads and writes every byte once, one thread per core, without
any synchronisation, measured in the same run while the ranks sleep.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

SWEEP = [2**power for power in range(10, 27)] + [100 * 2**20]
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
BATCH_SECONDS = 0.03


def parse_size(text: str) -> int:
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1] if number and number[-1] in UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * UNITS[unit])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 4096, 64K or 1M") from None
    if size < 4:
        raise argparse.ArgumentTypeError(f"{text!r}: the smallest size is 4 bytes, one float32")
    return size - size % 4


def parse_sizes(text: str) -> list[int]:
    return list(SWEEP) if text == "sweep" else [parse_size(item) for item in text.split(",")]


def parse_ranks(text: str) -> list[int]:
    ranks = [int(item) for item in text.split(",")]
    if any(count < 1 for count in ranks):
        raise argparse.ArgumentTypeError("numbers of ranks start at 1")
    return ranks


def show_size(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


# ---------------------------------------------------------------- in each rank


class Contender:
    """One way to all-reduce the tensors of a case; `run` does it once."""

    def __init__(self, name: str, run: Any) -> None:
        self.name, self.run = name, run
        self.seconds: list[float] = []
        self.iterations = 1


def timed(contender: Contender, reduce_max: Any, barrier: Any) -> float:
    """Seconds per call of one batch, of the slowest rank."""
    barrier()
    begin = time.perf_counter()
    for _ in range(contender.iterations):
        contender.run()
    return reduce_max((time.perf_counter() - begin) / contender.iterations)


def size_contenders(size: int, torch: Any, ops: Any, dist: Any) -> list[Contender]:
    shared = ops.empty((size // 4,), "float32")
    private, other = torch.zeros(size // 4), torch.zeros(size // 4)
    shared.zero_()
    return [
        Contender("shared", lambda: ops.allreduce(shared)),
        Contender("private", lambda: ops.allreduce(private)),
        Contender("gloo", lambda: dist.all_reduce(other)),
    ]


def gradient_contenders(torch: Any, ops: Any, dist: Any) -> list[Contender]:
    """ResNet-50's gradients, one call each; and in buckets of 25 MB."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from resnet import resnet50

    parameters = [p.detach() for p in resnet50(num_classes=1000).parameters()]
    sizes = [p.numel() for p in parameters]

    def place(make: Any) -> list[Any]:
        tensors = [make(count) for count in sizes]
        for tensor in tensors:
            tensor.zero_()
        return tensors

    shared = place(lambda count: ops.empty((count,), "float32"))
    private, other, buckets = place(torch.zeros), place(torch.zeros), place(torch.zeros)
    whole = torch.zeros(sum(sizes))
    limit = 25 * 2**20 // 4
    pieces = [whole[i : i + limit] for i in range(0, whole.numel(), limit)]

    def each(reduce: Any, tensors: list[Any]) -> Any:
        def run() -> None:
            for tensor in tensors:
                reduce(tensor)

        return run

    bucket = ops.GradientBucket(bucket_size_mb=25, reduce_op="sum")

    def bucketed() -> None:
        for tensor in buckets:
            bucket.add(tensor)
        bucket.allreduce()
        bucket.clear()

    def gloo_buckets() -> None:
        at = 0
        for tensor in other:
            whole[at : at + tensor.numel()] = tensor
            at += tensor.numel()
        each(dist.all_reduce, pieces)()
        at = 0
        for tensor in other:
            tensor.copy_(whole[at : at + tensor.numel()])
            at += tensor.numel()

    return [
        Contender("shared", each(ops.allreduce, shared)),
        Contender("private", each(ops.allreduce, private)),
        Contender("buckets", bucketed),
        Contender("gloo", each(dist.all_reduce, other)),
        Contender("gloo buckets", gloo_buckets),
    ]


def measure(contenders: list[Contender], repeats: int, ops: Any, torch: Any) -> None:
    scalar = torch.zeros(1, dtype=torch.float64)

    def reduce_max(value: float) -> float:
        scalar[0] = value
        ops.allreduce(scalar, op="max")
        return float(scalar[0])

    for contender in contenders:
        for _ in range(3):
            once = timed(contender, reduce_max, ops.barrier)
        contender.iterations = max(3, min(20000, int(BATCH_SECONDS / once)))
    for _ in range(repeats):
        for contender in contenders:
            contender.seconds.append(timed(contender, reduce_max, ops.barrier))


def rank_main(plan: dict[str, Any]) -> None:
    import collective_ops as ops
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), plan["ranks"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{plan['store']}", rank=rank, world_size=ranks)
    ops.init_hccl(rank=rank, world_size=ranks, device_id=rank)
    cores = len(os.sched_getaffinity(0))
    for case in plan["cases"]:
        if case == "resnet50":
            contenders = gradient_contenders(torch, ops, dist)
            size = 4 * 25_557_032
        else:
            contenders = size_contenders(case, torch, ops, dist)
            size = case
        ops.barrier()
        limits = []
        if rank == 0 and size >= 2**20:
            limits.append(ops._core.inplace_reduce_seconds(ranks, size, cores))
        measure(contenders, plan["repeats"], ops, torch)
        if rank == 0 and size >= 2**20:
            limits.append(ops._core.inplace_reduce_seconds(ranks, size, cores))
        ops.barrier()
        if rank == 0:
            row = {
                "case": case,
                "bytes": size,
                "ranks": ranks,
                "limit_seconds": min(limits) if limits else None,
                "seconds": {c.name: c.seconds for c in contenders},
            }
            print("ROW " + json.dumps(row), flush=True)
        del contenders
    dist.barrier()
    dist.destroy_process_group()
    ops.finalize()


# ---------------------------------------------------------------- in the parent


def run_ranks(ranks: int, cases: list[Any], repeats: int) -> list[dict[str, Any]]:
    """Starts `ranks` processes, shows rank 0's rows as they come, returns them."""
    with tempfile.TemporaryDirectory() as scratch:
        plan = {"ranks": ranks, "cases": cases, "repeats": repeats, "store": f"{scratch}/store"}
        job = f"benchmark-{uuid.uuid4()}"
        processes: list[subprocess.Popen[str]] = []
        for rank in range(ranks):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "COLLECTIVE_OPS_JOB_ID": job,
            }
            command = [sys.executable, os.path.abspath(__file__), "--as-rank", json.dumps(plan)]
            stdout = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(command, env=env, stdout=stdout, text=True))
        rows = []
        try:
            for line in processes[0].stdout:
                if line.startswith("ROW "):
                    rows.append(json.loads(line[4:]))
                    print_row(rows[-1])
            if any(process.wait() != 0 for process in processes):
                raise SystemExit(f"a rank of the {ranks}-rank run failed; its error stands above")
        finally:
            for process in processes:
                process.kill()
        return rows


def ratio(row: dict[str, Any], slower: str, faster: str) -> float:
    """How many times faster `faster` is: the median over neighbouring batches."""
    pairs = zip(row["seconds"][slower], row["seconds"][faster], strict=True)
    return statistics.median(a / b for a, b in pairs)


def spread(row: dict[str, Any], name: str) -> float:
    """Of one contender against itself: half of its batches lie within this factor of the median."""
    seconds = row["seconds"][name]
    middle = statistics.median(seconds)
    return statistics.median(max(value / middle, middle / value) for value in seconds)


def print_row(row: dict[str, Any]) -> None:
    median = {name: statistics.median(values) for name, values in row["seconds"].items()}
    if row["case"] == "resnet50":
        print(f"\nResNet-50, 161 gradients, {row['bytes'] / 1e6:.1f} MB, {row['ranks']} ranks")
        print(f"  {'library':<34}{'latency ms':>12}{'GB/s':>9}{'x gloo':>9}")
        labels = {
            "shared": "collective_ops, shared memory",
            "private": "collective_ops, private memory",
            "buckets": "collective_ops, GradientBucket 25 MB",
            "gloo": "gloo",
            "gloo buckets": "gloo, 25 MB buckets copied by hand",
        }
        for name, seconds in median.items():
            print(
                f"  {labels[name]:<34}{seconds * 1e3:>12.2f}{row['bytes'] / seconds / 1e9:>9.2f}"
                f"{ratio(row, 'gloo', name):>9.1f}"
            )
        return
    limit = row["limit_seconds"]
    share = f"{limit / median['shared']:>8.0%}{limit / median['private']:>9.0%}" if limit else f"{'':>17}"
    columns = "".join(f"{median[name] * 1e6:>12.1f}" for name in ("shared", "private", "gloo"))
    print(
        f"{row['ranks']:>5}{show_size(row['bytes']):>10}{columns}{ratio(row, 'gloo', 'shared'):>9.1f}"
        f"{ratio(row, 'gloo', 'private'):>9.1f}{share}{spread(row, 'shared'):>8.2f}",
        flush=True,
    )


def print_header() -> None:
    print(f"{'':>15}{'microseconds per call, median':^36}{'x gloo':^18}{'of the limit':^17}")
    print(
        f"{'ranks':>5}{'size':>10}{'shared':>12}{'private':>12}{'gloo':>12}{'shared':>9}{'private':>9}"
        f"{'shared':>8}{'private':>9}{'spread':>8}"
    )


def summarise(rows: list[dict[str, Any]], cores: int) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for ranks in sorted({row["ranks"] for row in rows}):
        sized = [row for row in rows if row["ranks"] == ranks and row["case"] != "resnet50"]
        swept = [row for row in sized if 2**10 <= row["bytes"] <= 2**26]
        for name in ("shared", "private"):
            if len(swept) > 1:
                logs = [math.log(ratio(row, "gloo", name)) for row in swept]
                summary[f"times faster than gloo, {name}, {ranks} ranks"] = math.exp(statistics.mean(logs))
    first = min((row["ranks"] for row in rows), default=0)
    for row in rows:
        base = next(r for r in rows if r["case"] == row["case"] and r["ranks"] == first)
        if row["ranks"] == first or first < 2:
            continue
        efficiency = statistics.median(base["seconds"]["shared"]) / statistics.median(
            row["seconds"]["shared"]
        )
        mark = f", oversubscribed: {row['ranks']} ranks on {cores} cores" if row["ranks"] > cores else ""
        what = "resnet50" if row["case"] == "resnet50" else show_size(row["bytes"])
        if what == "resnet50" or row["bytes"] == max(r["bytes"] for r in rows):
            summary[f"weak scaling {first} -> {row['ranks']} ranks, shared, {what}{mark}"] = efficiency
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        type=parse_sizes,
        default=None,
        help="bytes, as 4096,64K,1M; or `sweep` for 1 KiB to 64 MiB and 100 MiB",
    )
    parser.add_argument(
        "--ranks", type=parse_ranks, default=[2, 8], help="numbers of ranks, as 2,8 (default)"
    )
    parser.add_argument("--repeats", type=int, default=11, help="batches of each contender (default 11)")
    parser.add_argument("--json", metavar="FILE", help="also write every batch's time, as JSON")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        rank_main(json.loads(options.as_rank))
        return
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores; load before the run {os.getloadavg()[0]:.1f} (a busy machine spoils the figures)")
    cases: list[Any] = options.sizes or ["resnet50"]
    if options.sizes:
        print_header()
    rows = []
    for ranks in options.ranks:
        rows += run_ranks(ranks, cases, options.repeats)
    print()
    summary = summarise(rows, cores)
    for name, value in summary.items():
        print(f"{name}: {value:.2f}")
    if options.json:
        temporary = Path(f"{options.json}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"cores": cores, "rows": rows, "summary": summary}, indent=1))
        temporary.rename(options.json)


if __name__ == "__main__":
    main()
