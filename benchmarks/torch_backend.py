#!/usr/bin/env python3
"""The PyTorch backend beside Gloo, in one run: every collective through Python.

    python benchmarks/torch_backend.py                       2 and 4 ranks, 8 B to 64 MiB
    python benchmarks/torch_backend.py --ranks 8 --sizes 8,65536 --collectives all_reduce,barrier

Both backends live in the same processes and take turns, round by round; in all_reduce DeepSpeed's operator
in shared memory, too, where it is built and every rank has a core (peers/deepspeed_shm.py). Times are
microseconds of one blocking call: of each round the slowest rank's, and of the rounds the median. A ratio is
the other's over ours. DeepSpeed's operator is called without c10d; so is `collective_ops.allreduce`, in the
column "direct", over which DeepSpeed's ratio is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import collective_ops
import torch
import torch.distributed as dist
from peers import deepspeed_shm

SIZES = (8, 1024, 16384, 262144, 4 << 20, 64 << 20)
# By a process group, or by an all-reduce that is called with the tensor.
Backend = dist.ProcessGroup | Callable[[torch.Tensor], object]
Call = Callable[[Backend], object]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time every collective on our backend and on Gloo.")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas (default 2,4)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, with commas")
    parser.add_argument("--collectives", default="", help="only these, with commas")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each backend, call and size")
    parser.add_argument("--json", help="write all results to this file")
    options = parser.parse_args()
    if "TORCH_BACKEND_BENCHMARK" in os.environ:
        run_rank(options)
        return 0
    results = []
    for ranks in map(int, options.ranks.split(",")):
        rows, left_out = run_ranks(ranks)
        results += [{"ranks": ranks, **row} for row in rows]
        print_table(ranks, rows, left_out)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


def print_table(ranks: int, rows: list[dict], left_out: str) -> None:
    print(f"\n{ranks} ranks: microseconds of a blocking call (median of rounds, slowest rank)")
    heads = ("ours", 12), ("gloo", 12), ("ratio", 8), ("direct", 12), ("deepspeed", 12), ("ratio", 8)
    print(f"{'collective':<24}{'bytes':>10}" + "".join(f"{head:>{width}}" for head, width in heads))
    for row in rows:
        times = f"{row['ours']:>12.1f}{row['gloo']:>12.1f}{row['ratio']:>8.1f}"
        if "direct" in row:
            times += f"{row['direct']:>12.1f}"
        if "deepspeed" in row:
            times += f"{row['deepspeed']:>12.1f}{row['deepspeed'] / row['direct']:>8.1f}"
        print(f"{row['name']:<24}{row['bytes']:>10}{times}")
    logs = [math.log(row["ratio"]) for row in rows]
    print(f"{'geometric mean':<58}{math.exp(statistics.mean(logs)):>8.1f}")
    if left_out:
        print(f"DeepSpeed is left out: {left_out}")


def run_ranks(ranks: int) -> Any:
    """Runs this program as so many ranks; what the first printed last, as JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "TORCH_BACKEND_BENCHMARK": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    output = processes[0].communicate()[0]
    if any(process.wait() for process in processes):
        raise SystemExit("a rank failed")
    return json.loads(output.splitlines()[-1])


def calls(size: int, ranks: int, rank: int) -> dict[str, Call]:
    """Every collective on `size` bytes of float32: of the vector, or of all ranks' parts together."""
    count = max(size // 4, 1)
    part = max(count // ranks, 1)
    # Zeros stay zeros, however often they are added up.
    x, whole, own = torch.zeros(count), torch.ones(part * ranks), torch.ones(part)
    parts, others = list(torch.ones(part * ranks).chunk(ranks)), list(torch.ones(part * ranks).chunk(ranks))
    exchanged = torch.ones(part * ranks)
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    received, halves = torch.ones(count), torch.zeros(2 * count, dtype=torch.bfloat16)

    def all_reduce(tensor: torch.Tensor) -> Call:
        return lambda by: (
            dist.all_reduce(tensor, group=by) if isinstance(by, dist.ProcessGroup) else by(tensor)
        )

    def ring(group: dist.ProcessGroup) -> None:
        work = dist.isend(x, group_dst=following, group=group)
        dist.recv(received, group_src=before, group=group)
        work.wait()

    return {
        "all_reduce": all_reduce(x),
        "all_reduce_bfloat16": all_reduce(halves),
        "reduce": lambda group: dist.reduce(x, op=dist.ReduceOp.MAX, group_dst=0, group=group),
        "broadcast": lambda group: dist.broadcast(x, group_src=0, group=group),
        "all_gather": lambda group: dist.all_gather(parts, own, group),
        "all_gather_single": lambda group: dist.all_gather_single(whole, own, group),
        "reduce_scatter": lambda group: dist.reduce_scatter(own, parts, dist.ReduceOp.MAX, group),
        "reduce_scatter_single": lambda group: dist.reduce_scatter_single(
            own, whole, dist.ReduceOp.MAX, group
        ),
        "gather": lambda group: dist.gather(own, parts if rank == 0 else None, group_dst=0, group=group),
        "scatter": lambda group: dist.scatter(own, parts if rank == 0 else None, group_src=0, group=group),
        "all_to_all_single": lambda group: dist.all_to_all_single(exchanged, whole, group=group),
        "all_to_all": lambda group: dist.all_to_all(others, parts, group),
        "send_recv_ring": ring,
        "barrier": lambda group: dist.barrier(group),
    }


# Which Gloo does not have.
OURS_ALONE = ("all_to_all",)
# Which are called without c10d as well.
SUMS = ("all_reduce", "all_reduce_bfloat16")


def run_rank(options: argparse.Namespace) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("collective_ops", timeout=timedelta(seconds=120))
    groups = {
        "ours": dist.group.WORLD,
        "gloo": dist.new_group(backend="gloo", timeout=timedelta(seconds=120)),
    }
    deepspeed = deepspeed_shm.connect(ranks, rank)
    left_out = deepspeed if isinstance(deepspeed, str) else ""
    collective_ops.init_hccl()  # joins the process group
    alone = {"direct": collective_ops.allreduce} | ({} if left_out else {"deepspeed": deepspeed})
    chosen = options.collectives.split(",") if options.collectives else None
    rows = []
    for size in map(int, options.sizes.split(",")):
        for name, call in calls(size, ranks, rank).items():
            if (
                name in OURS_ALONE
                or (chosen and name not in chosen)
                or (name == "barrier" and rows_have(rows, name))
            ):
                continue
            times = measure(call, groups | (alone if name in SUMS else {}), options.seconds)
            row = {"name": name, "bytes": size, **{key: value * 1e6 for key, value in times.items()}}
            rows.append({**row, "ratio": times["gloo"] / times["ours"]})
    if rank == 0:
        print(json.dumps((rows, left_out)))
    dist.destroy_process_group()


def rows_have(rows: list[dict], name: str) -> bool:
    return any(row["name"] == name for row in rows)


def measure(call: Call, groups: dict[str, Backend], seconds: float) -> dict[str, float]:
    """Seconds of one call, by backend; the backends take turns."""
    rounds = 7
    inner = {name: repeats(call, group, seconds / rounds) for name, group in groups.items()}
    times: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            dist.barrier(groups["ours"])
            begun = time.perf_counter()
            for _ in range(inner[name]):
                call(group)
            times[name].append((time.perf_counter() - begun) / inner[name])
    slowest = {name: torch.tensor(taken, dtype=torch.float64) for name, taken in times.items()}
    for taken in slowest.values():
        dist.all_reduce(taken, dist.ReduceOp.MAX)
    return {name: taken.median().item() for name, taken in slowest.items()}


def repeats(call: Call, group: Backend, seconds: float) -> int:
    """How many calls fill that time: the same number on all ranks."""
    call(group)
    begun = time.perf_counter()
    for _ in range(3):
        call(group)
    count = torch.tensor([max(1, min(2000, int(3 * seconds / (time.perf_counter() - begun + 1e-9))))])
    dist.broadcast(count, 0)
    return int(count.item())


if __name__ == "__main__":
    sys.exit(main())
