#!/usr/bin/env python3
"""What recording a profile costs: steps of a ResNet-50 on one rank, without a profile, with torch.profiler
alone (one window over all steps), and with ours at each level, in turn in one process.

    python benchmarks/profile_benchmark.py [--rounds 5] [--steps 5] [--batch-size 4]

Prints per variant the median and least time of a step, with all that lies between steps, its ratio to no
profile and to torch.profiler, and how long the files took after the last step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = ResNet50(10), torch.randn(options.batch_size, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

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
    for _ in range(options.rounds):
        for name, run in variants.items():
            found[name].append(run(step, options.steps))
    steps = {name: [ran / options.steps * 1e3 for ran, _ in rows] for name, rows in found.items()}
    base, other = statistics.median(steps["no profile"]), statistics.median(steps["torch.profiler"])
    print(f"{'':20} {'step ms':>9} {'least':>9} {'/ none':>8} {'/ torch':>8} {'files ms':>9} {'/ steps':>8}")
    for name, rows in found.items():
        middle = statistics.median(steps[name])
        written = statistics.median(after for _, after in rows) * 1e3
        print(
            f"{name:20} {middle:9.1f} {min(steps[name]):9.1f} {middle / base:8.3f} {middle / other:8.3f} "
            f"{written:9.1f} {written / (middle * options.steps):8.3f}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps({name: rows for name, rows in found.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
