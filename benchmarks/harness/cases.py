"""What is measured: collectives, sizes, and the factors between bytes, time and bandwidth."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bfloat16": 2}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SWEEP = tuple(2**power for power in (3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28))
QUICK = (8, 2**10, 2**16, 2**20, 2**24)


@dataclass(frozen=True)
class Case:
    """`bytes`: the vector of all_reduce, broadcast and reduce; all ranks' parts together of the others."""

    collective: str
    dtype: str
    ranks: int
    bytes: int

    def busbw_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth, as nccl-tests define them."""
        n = self.ranks
        if self.collective == "all_reduce":
            return 2 * (n - 1) / n
        if self.collective in ("broadcast", "reduce"):
            return 1.0
        return (n - 1) / n

    def least_traffic(self) -> float:
        """Bytes that must at least be loaded and stored, by all ranks together."""
        n, size = self.ranks, self.bytes
        return {
            "all_reduce": 2.0 * n * size,
            "all_gather": 2.0 * (n - 1) * size,
            "reduce_scatter": (n + 1.0) * size,
            "broadcast": 2.0 * (n - 1) * size,
            "reduce": (n + 1.0) * size,
            "gather": 2.0 * (n - 1) / n * size,
            "scatter": 2.0 * (n - 1) / n * size,
            "all_to_all": 2.0 * n * size,
        }.get(self.collective, 0.0)

    def held_bytes(self) -> int:
        """Memory of one contender's buffers on all ranks."""
        return self.ranks * self.bytes * (2 if self.collective == "all_to_all" else 1)


def make_cases(collective: str, dtype: str, ranks: int, sizes: tuple[int, ...]) -> list[Case]:
    """Each size rounded up to whole elements of every rank's part; sizes that become equal are one case."""
    if collective == "barrier":
        return [Case(collective, dtype, ranks, 0)]
    whole = collective in ("all_reduce", "broadcast", "reduce")
    step = ITEM_BYTES[dtype] * (1 if whole else ranks)
    rounded = {-(-size // step) * step for size in sizes}
    return [Case(collective, dtype, ranks, size) for size in sorted(rounded)]


def parse_size(text: str) -> int:
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1] if number and number[-1] in UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 4096, 64K or 1M") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: the smallest size is 1 byte")
    return size


def parse_sizes(text: str) -> tuple[int, ...]:
    return SWEEP if text == "sweep" else tuple(parse_size(item) for item in text.split(","))


def parse_ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers of ranks as 2,4,8") from None
    if any(count < 2 for count in ranks):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of ranks start at 2")
    return ranks


def parse_collectives(text: str) -> tuple[str, ...]:
    names = COLLECTIVES if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in COLLECTIVES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COLLECTIVES)}, all")
    return names


def show_size(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
