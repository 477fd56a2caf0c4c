"""The shapes of the bucket example are BERT-Large's, and buckets of them save the calls that it prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


def test_shapes_are_those_of_the_published_configuration() -> None:
    from bert_buckets import shapes

    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes()]
    assert len(sizes) == 391
    assert sum(sizes) == 335_141_888


def calls_of_a_step(megabytes: float) -> tuple[int, int]:
    """Without and with buckets, as the library counts them."""
    import torch
    from bert_buckets import shapes
    from collective_ops import GradientBucket, allreduce, counters, init_hccl

    init_hccl()
    gradients = [torch.zeros(shape) for shape in shapes()]
    before = counters()["calls"]
    for gradient in gradients:
        allreduce(gradient)
    one_by_one = counters()["calls"] - before
    bucket = GradientBucket(bucket_size_mb=megabytes)
    before = counters()["calls"]
    for gradient in reversed(gradients):
        bucket.add(gradient)
    bucket.allreduce()
    return one_by_one, counters()["calls"] - before


@pytest.mark.parametrize(("megabytes", "fewer"), [(25, 7), (40, 10)])
def test_buckets_cut_the_calls(rank_pool: Any, megabytes: int, fewer: int) -> None:
    (one_by_one, bucketed) = rank_pool.run(calls_of_a_step, world_size=1, args=(megabytes,))[0]
    assert one_by_one == 391
    assert one_by_one / bucketed >= fewer
