#!/usr/bin/env python3
"""What recording a profile costs: training steps of the ResNet example (ResNet-50, 32 images a rank),
without a profile, with torch.profiler alone (one window over all steps), and with ours at each level.

    python benchmarks/profile_benchmark.py [--rounds 5] [--steps 5] [--batch-size 32]
    collective-ops run --nproc_per_node 8 benchmarks/profile_benchmark.py

In every round the variants follow one another in another order, in one process; as ranks of a job the step
averages the gradients too. Prints per variant the median and least time of a step with all between steps,
the median over the rounds of its ratio to that round's steps without a profile and with torch.profiler,
and how long the files took after the last step. Rank 0 prints its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import collective_ops
import torch
from collective_ops.profiler import ProfileConfig, outputs, profile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from resnet import ResNet50  # noqa: E402


def bare(step: Callable[[], None], steps: int) -> tuple[float, float]:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start, 0.0


def torch_alone(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Start, steps, stop; and the export."""
    start = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    ran = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
    return ran, time.perf_counter() - start - ran


def ours(level: str, more: bool) -> Callable[[Callable[[], None], int], tuple[float, float]]:
    def run(step: Callable[[], None], steps: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            config = ProfileConfig(
                enable_profiling=True,
                profiling_dir=folder,
                step_start=0,
                step_end=steps + 1,
                level=level,
                with_cpu=more,
                with_memory=more,
            )
            profiler = profile(config)
            profiler.__enter__()
            start = time.perf_counter()
            for _ in range(steps):
                step()
                profiler.step()
            ran = time.perf_counter() - start
            assert profiler.directory is not None and not profiler.failure
            profiler._drop_window()
            outputs_start = time.perf_counter()
            outputs.write(profiler.directory)
            written = time.perf_counter() - outputs_start
            profiler.__exit__(None, None, None)
            return ran, written

    return run


def training_step(batch_size: int) -> Callable[[], None]:
    model, inputs = ResNet50(10), torch.randn(batch_size, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    bucket = None
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        collective_ops.init_hccl()
        bucket = collective_ops.GradientBucket()

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        if bucket is not None:
            for parameter in model.parameters():
                bucket.add(parameter.grad)
            bucket.allreduce()
            bucket.clear()
        optimizer.step()

    return step


def report(found: dict[str, list[tuple[float, float]]], steps: int) -> None:
    base, other = found["no profile"], found["torch.profiler"]
    print(f"{'':20} {'step ms':>9} {'least':>9} {'/ none':>8} {'/ torch':>8} {'files ms':>9} {'/ steps':>8}")
    for name, rows in found.items():
        times = [ran / steps * 1e3 for ran, _ in rows]
        ratios = [
            statistics.median(row[0] / same[0] for row, same in zip(rows, against, strict=True))
            for against in (base, other)
        ]
        written = statistics.median(after / ran for ran, after in rows)
        print(
            f"{name:20} {statistics.median(times):9.1f} {min(times):9.1f} {ratios[0]:8.3f} {ratios[1]:8.3f} "
            f"{statistics.median(after for _, after in rows) * 1e3:9.1f} {written:8.3f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("collective_ops.profiler").setLevel(logging.ERROR)  # loops end before the range does
    step = training_step(options.batch_size)
    variants = {
        "no profile": bare,
        "torch.profiler": torch_alone,
        "level0": ours("level0", False),
        "level1": ours("level1", False),
        "level2, cpu, memory": ours("level2", True),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for run in variants.values():  # once each, not counted
        run(step, 1)
    order = random.Random(1)  # the same on all ranks
    for _ in range(options.rounds):
        for name in order.sample(list(variants), len(variants)):
            found[name].append(variants[name](step, options.steps))
    if int(os.environ.get("RANK", 0)) == 0:
        report(found, options.steps)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    if collective_ops.is_initialized():
        collective_ops.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
