#!/usr/bin/env python3
"""What buckets save: BERT-Large's gradients, reduced one by one and in buckets.

    collective-ops run --nproc_per_node 2 examples/bert_buckets.py
    collective-ops run --nproc_per_node 2 examples/bert_buckets.py --bucket-size-mb 40 --steps 5

The shapes are those of the published configuration (24 layers of width 1024, 30,522 tokens: 391 tensors,
335 million parameters, 1.34 GB in float32); the values are random. Printed are the calls per step as the
library counted them, and the median time of a step's reduction. Each rank needs about 3 GB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from collective_ops import GradientBucket, allreduce, barrier, counters, init_hccl, rank, world_size

LAYERS, WIDTH, INNER, TOKENS, POSITIONS = 24, 1024, 4096, 30522, 512


def shapes() -> Iterator[tuple[int, ...]]:
    """Of every parameter, in the model's order."""
    yield from [(TOKENS, WIDTH), (POSITIONS, WIDTH), (2, WIDTH), (WIDTH,), (WIDTH,)]
    for _ in range(LAYERS):
        yield from [(WIDTH, WIDTH), (WIDTH,)] * 4  # query, key, value, output
        yield from [(WIDTH,), (WIDTH,)]
        yield from [(INNER, WIDTH), (INNER,), (WIDTH, INNER), (WIDTH,)]
        yield from [(WIDTH,), (WIDTH,)]
    yield from [(WIDTH, WIDTH), (WIDTH,)]


def measure(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Calls per step, and the median seconds of a step."""
    step()
    before, seconds = counters()["calls"], []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return (counters()["calls"] - before) / steps, statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bucket-size-mb", type=float, default=25, help="default 25")
    parser.add_argument("--steps", type=int, default=3, help="steps measured of each way (default 3)")
    options = parser.parse_args()
    init_hccl()
    torch.set_num_threads(1)
    parameters = [torch.nn.Parameter(torch.empty(shape)) for shape in shapes()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    size = sum(parameter.numel() for parameter in parameters) * 4
    bucket = GradientBucket(bucket_size_mb=options.bucket_size_mb, reduce_op="avg")

    def one_by_one() -> None:
        for parameter in parameters:
            allreduce(parameter.grad, op="avg")

    def bucketed() -> None:
        for parameter in reversed(parameters):  # the order in which backward makes them
            bucket.add(parameter.grad)
        bucket.allreduce()
        bucket.clear()

    rows = []
    for name, step in (("one by one", one_by_one), (f"buckets of {options.bucket_size_mb:g} MB", bucketed)):
        barrier()
        rows.append((name, *measure(step, options.steps)))
    placed = GradientBucket(bucket_size_mb=options.bucket_size_mb, reduce_op="avg", parameters=parameters)
    barrier()
    rows.append(
        (f"placed, buckets of {options.bucket_size_mb:g} MB", *measure(placed.allreduce, options.steps))
    )
    if rank() != 0:
        return
    print(f"BERT-Large: {len(parameters)} gradients, {size / 1e9:.2f} GB in float32, {world_size()} ranks")
    print(f"  {'':<26}{'calls a step':>14}{'seconds':>10}{'GB/s':>8}")
    for name, calls, seconds in rows:
        print(f"  {name:<26}{calls:>14.0f}{seconds:>10.3f}{size / seconds / 1e9:>8.2f}")
    print(f"  fewer calls: {rows[0][1] / rows[1][1]:.1f} times, placed {rows[0][1] / rows[2][1]:.1f} times")


if __name__ == "__main__":
    main()
