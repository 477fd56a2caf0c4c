"""For tests of the PyTorch backend: process groups inside ranks of the pool, and tensors in every layout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from oracle import storage

# Every type that the core reduces, by its own name.
TORCH_TYPES = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
LAYOUTS = ("plain", "strided", "transposed", "view", "expanded_shape")


@contextmanager
def process_group(backend: str = "collective_ops", seconds: float = 30, **arguments: Any) -> Iterator[None]:
    """This rank's world, made from the environment and left at the end."""
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **arguments)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def to_tensor(values: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor of `dtype` with these values; bfloat16 comes as bits (oracle.py)."""
    raw = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).copy())
    return raw.view(TORCH_TYPES[dtype]) if values.size else torch.empty(0, dtype=TORCH_TYPES[dtype])


def to_array(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The elements, row-major, as the oracle holds them."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return np.empty(0, storage(dtype))
    return flat.view(torch.uint8).numpy().view(storage(dtype))


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor | None:
    """A tensor with `values` in row-major order, in that layout; None where there is none for them."""
    count = values.numel()
    if layout == "plain":
        return values.clone()
    if layout == "strided":
        holder = torch.zeros(2 * count, dtype=values.dtype)
        holder[::2] = values
        return holder[::2]
    if layout == "transposed":
        if count % 4:
            return None
        return values.view(4, count // 4).t().contiguous().t()
    if layout == "view":  # of a storage that others use before and behind it
        holder = torch.zeros(count + 5, dtype=values.dtype)
        holder[3 : 3 + count] = values
        return holder[3 : 3 + count]
    if layout == "expanded_shape":
        return values.clone().view(1, count, 1)
    raise ValueError(layout)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal to the last bit; NaNs as such, and zeros whatever their sign."""
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
