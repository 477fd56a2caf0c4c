"""ResNet-50's 161 gradients as one case: one call each, or in buckets of 25 MB."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BYTES = 4 * 25_557_032
BUCKET_MB = 25
LABELS = {
    "shared": "collective_ops, shared memory",
    "private": "collective_ops, private memory",
    "buckets": f"collective_ops, GradientBucket {BUCKET_MB} MB",
    "gloo": "gloo",
    "gloo-buckets": f"gloo, {BUCKET_MB} MB buckets copied by hand",
}


def gradient_sizes() -> list[int]:
    """Elements of each gradient."""
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from resnet import ResNet50

    with torch.device("meta"):  # shapes alone
        return [parameter.numel() for parameter in ResNet50(num_classes=1000).parameters()]


class GradientCase:
    """`way`: a key of LABELS."""

    def __init__(self, way: str) -> None:
        import collective_ops as ops
        import torch
        import torch.distributed as dist

        sizes = gradient_sizes()
        make = ops.empty if way == "shared" else torch.zeros
        self.tensors = [make(count) for count in sizes]
        self.data = torch.zeros(sum(sizes) if way == "gloo-buckets" else 0)
        for tensor in self.tensors:
            tensor.zero_()
        self.call: Callable[[], None] = {
            "shared": lambda: self._each(ops.allreduce),
            "private": lambda: self._each(ops.allreduce),
            "buckets": self._bucketed,
            "gloo": lambda: self._each(dist.all_reduce),
            "gloo-buckets": lambda: self._copied(dist.all_reduce),
        }[way]
        self.bucket = ops.GradientBucket(bucket_size_mb=BUCKET_MB, reduce_op="sum")

    def _each(self, reduce: Callable[[Any], Any]) -> None:
        for tensor in self.tensors:
            reduce(tensor)

    def _bucketed(self) -> None:
        for tensor in self.tensors:
            self.bucket.add(tensor)
        self.bucket.allreduce()
        self.bucket.clear()

    def _copied(self, reduce: Callable[[Any], Any]) -> None:
        at = 0
        for tensor in self.tensors:
            self.data[at : at + tensor.numel()] = tensor
            at += tensor.numel()
        for piece in self.data.split(BUCKET_MB * 2**20 // 4):
            reduce(piece)
        at = 0
        for tensor in self.tensors:
            tensor.copy_(self.data[at : at + tensor.numel()])
            at += tensor.numel()

    def fill(self) -> None:
        for tensor in self.tensors:
            tensor.fill_(1)

    def wrong(self) -> int:
        import collective_ops as ops

        count = sum(int((tensor != ops.world_size()).sum()) for tensor in self.tensors)
        for tensor in self.tensors:
            tensor.zero_()
        return count
