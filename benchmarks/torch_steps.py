#!/usr/bin/env python3
"""The PyTorch backend beside Gloo in what programs do: groups, DDP, FSDP2, tensor-parallel decoding.

    python benchmarks/torch_steps.py                               every scenario, 2 ranks
    python benchmarks/torch_steps.py --ranks 4 --scenarios fsdp,decode --json out.json

Both backends live in the same processes, do the same work and take turns. Of each round the slowest rank's
time counts, and of the rounds the median; CPU time is that of all ranks together. "ours, placed" is our
backend with buffers in memory that ranks share, "ours, shared" with gathered parameters once per host: what
that saves in memory shows tests/python/test_torch_shared_parameters.py, each variant in its own processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_backend import run_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

Step = Callable[[], object]
BUCKET = 25 << 20  # bytes: DDP's default
DECODE_LAYERS = 32


def main() -> int:
    parser = argparse.ArgumentParser(description="Time groups, training steps and decoding on both backends.")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, with commas (default 2)")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each variant (default 5)")
    parser.add_argument("--json", help="write all results to this file")
    options = parser.parse_args()
    unknown = set(options.scenarios.split(",")) - set(SCENARIOS)
    if unknown:
        parser.error(f"--scenarios: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    if "TORCH_BACKEND_BENCHMARK" in os.environ:
        run_rank(options)
        return 0
    results = []
    for ranks in map(int, options.ranks.split(",")):
        rows = run_ranks(ranks)
        results += [{"ranks": ranks, **row} for row in rows]
        print_table(ranks, rows)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    return 0


def print_table(ranks: int, rows: list[dict]) -> None:
    print(f"\n{ranks} ranks: median of rounds, slowest rank; CPU time of all ranks")
    print(f"{'scenario':<34}{'variant':<16}{'ms':>10}{'cpu ms':>10}{'gloo / it':>11}")
    for row in rows:
        ratio = f"{row['ratio']:.1f}" if "ratio" in row else "-"
        print(f"{row['scenario']:<34}{row['variant']:<16}{row['ms']:>10.3f}{row['cpu_ms']:>10.2f}{ratio:>11}")


def run_rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("collective_ops", timeout=timedelta(seconds=300))
    groups = {
        "ours": dist.group.WORLD,
        "gloo": dist.new_group(backend="gloo", timeout=timedelta(seconds=300)),
    }
    rows: list[dict] = []
    for name in options.scenarios.split(","):
        for title, steps in SCENARIOS[name](groups):
            rows += measure(title, steps, options.rounds)
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def measure(title: str, steps: dict[str, Step], rounds: int) -> list[dict]:
    """A row for each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            dist.barrier()
            begun, used = time.perf_counter(), time.process_time()
            step()
            seconds[name].append(time.perf_counter() - begun)
            cpu[name].append(time.process_time() - used)
    rows = []
    for name in steps:
        slowest = torch.tensor(seconds[name], dtype=torch.float64)
        worked = torch.tensor(cpu[name], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        dist.all_reduce(worked)
        row = {
            "scenario": title,
            "variant": name,
            "ms": statistics.median(slowest.tolist()) * 1e3,
            "cpu_ms": statistics.median(worked.tolist()) * 1e3,
        }
        rows.append(row)
    gloo = next((row["ms"] for row in rows if row["variant"] == "gloo"), None)
    for row in rows:
        if gloo is not None and row["variant"] != "gloo":
            row["ratio"] = gloo / row["ms"]
    return rows


Groups = dict[str, dist.ProcessGroup]
Scenario = Iterator[tuple[str, dict[str, Step]]]


def group_life(groups: Groups) -> Scenario:
    def life(backend: str) -> None:
        group = dist.new_group(backend=backend)
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)

    yield (
        "group: made, used once, destroyed",
        {"ours": lambda: life("collective_ops"), "gloo": lambda: life("gloo")},
    )


def small(groups: Groups) -> Scenario:
    """8 bytes; and alone, where there is nobody to wait for, so that all of the time is what PyTorch's call
    costs."""
    number, calls = torch.ones(2), 1000
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def many(group: dist.ProcessGroup) -> None:
        for _ in range(calls):
            dist.all_reduce(number, dist.ReduceOp.MAX, group)

    yield (
        f"{calls} all_reduce of 8 B",
        {name: lambda group=group: many(group) for name, group in groups.items()},
    )
    yield f"{calls} all_reduce of 8 B, one rank", {"ours": lambda: many(alone)}


def bert(groups: Groups) -> Scenario:
    """As DDP's reducer with BERT-Large's gradients: buckets of 25 MiB, all started, then waited for."""
    from bert_buckets import shapes

    left = sum(torch.Size(shape).numel() for shape in shapes()) * 4
    sizes = [BUCKET] * (left // BUCKET) + [left % BUCKET]
    private = [torch.zeros(size // 4) for size in sizes]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    placed = [
        backend.allocate_tensor(size // 4, dtype=torch.float32, device=torch.device("cpu")).zero_()
        for size in sizes
    ]

    def reduce(buckets: list[torch.Tensor], group: dist.ProcessGroup) -> None:
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]:
            work.wait()

    yield (
        "BERT-Large's gradients by DDP",
        {
            "ours": lambda: reduce(private, groups["ours"]),
            "ours, placed": lambda: reduce(placed, groups["ours"]),
            "gloo": lambda: reduce(private, groups["gloo"]),
        },
    )


def resnet(groups: Groups) -> Scenario:
    from resnet import ResNet50
    from torch.nn.parallel import DistributedDataParallel

    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])

    def step_of(group: dist.ProcessGroup, shared: bool) -> Step:
        os.environ["DDP_DISABLE_COMM_MEM"] = "0" if shared else "1"
        net = DistributedDataParallel(ResNet50(), process_group=group, gradient_as_bucket_view=True)

        def step() -> None:
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(images), labels).backward()

        return step

    yield (
        "ResNet-50 by DDP: a step",
        {
            "ours": step_of(groups["ours"], False),
            "ours, placed": step_of(groups["ours"], True),
            "gloo": step_of(groups["gloo"], False),
        },
    )


def fsdp(groups: Groups) -> Scenario:
    """Eight blocks of 8 MiB."""
    from collective_ops_torch.fsdp import share_gathered_parameters
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    width, inputs = 1024, torch.randn(4, 1024)

    def step_of(group: dist.ProcessGroup, share: bool) -> Step:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            *(
                torch.nn.Sequential(
                    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
                )
                for _ in range(8)
            )
        )
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in net:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        if share:
            share_gathered_parameters(net)

        def step() -> None:
            net(inputs).pow(2).mean().backward()
            net.zero_grad()

        return step

    yield (
        "FSDP2: a step",
        {
            "ours": step_of(groups["ours"], False),
            "ours, shared": step_of(groups["ours"], True),
            "gloo": step_of(groups["gloo"], False),
        },
    )


def decode(groups: Groups) -> Scenario:
    """The all-reduces of one token, or of a batch of them: two for each layer, in bfloat16."""
    for kib in (16, 64, 256, 1024):
        hidden = torch.zeros(kib << 9, dtype=torch.bfloat16)

        def token(group: dist.ProcessGroup, hidden: torch.Tensor = hidden) -> None:
            for _ in range(2 * DECODE_LAYERS):
                dist.all_reduce(hidden, group=group)

        yield (
            f"decode: {2 * DECODE_LAYERS} all_reduce of {kib} KiB",
            {name: lambda group=group, token=token: token(group) for name, group in groups.items()},
        )


SCENARIOS = {
    "groups": group_life,
    "small": small,
    "bert": bert,
    "resnet": resnet,
    "fsdp": fsdp,
    "decode": decode,
}

if __name__ == "__main__":
    sys.exit(main())
