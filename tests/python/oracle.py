"""What a reduction must give, bit for bit, in numpy: rank 0 + 1 + ... in float32 or wider, rounded once.

bfloat16 arrays are held as uint16 bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3", "float8_e5m2")


def storage(dtype: str) -> np.dtype:
    """The numpy type that elements of `dtype` are held in."""
    return np.dtype({"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}.get(dtype, dtype))


def ops_of(dtype: str) -> tuple[str, ...]:
    if dtype in INTEGERS:
        return ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")
    if dtype == "bool":
        return ("sum", "prod", "min", "max", "band", "bor", "bxor")
    return ("sum", "avg", "prod") if dtype in COMPLEX else ("sum", "avg", "prod", "min", "max")


def random_array(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    if dtype in COMPLEX:  # small integers: products are exact in whatever way they are computed
        return (rng.integers(-3, 4, count) + 1j * rng.integers(-3, 4, count)).astype(dtype)
    if dtype == "bfloat16":
        return to_bfloat16(rng.standard_normal(count).astype(np.float32))
    return rng.standard_normal(count).astype(dtype)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even; float32 without NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reduce(parts: Sequence[np.ndarray], op: str, dtype: str) -> np.ndarray:
    """The reduction of all ranks' arrays, rank by rank."""
    if dtype == "bfloat16":
        return to_bfloat16(_in_order([from_bfloat16(part) for part in parts], op))
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return _in_order([part.astype(np.float32) for part in parts], op).astype(np.float16)
    if op == "avg" and dtype in INTEGERS:
        wide = np.uint64 if dtype.startswith("u") else np.int64
        total = _in_order([part.astype(wide) for part in parts], "sum")
        floor, rest = np.divmod(total, wide(len(parts)))
        towards_zero = floor + ((total < 0) & (rest != 0)).astype(wide) if wide is np.int64 else floor
        return towards_zero.astype(dtype)
    return _in_order(parts, op)


def _in_order(parts: Sequence[np.ndarray], op: str) -> np.ndarray:
    result = parts[0].copy()
    for part in parts[1:]:
        if op in ("sum", "avg"):
            result = result | part if result.dtype == bool else result + part
        elif op == "prod":
            result = result & part if result.dtype == bool else result * part
        else:
            functions = {
                "min": np.minimum,
                "max": np.maximum,
                "band": np.bitwise_and,
                "bor": np.bitwise_or,
                "bxor": np.bitwise_xor,
            }
            result = functions[op](result, part)
    if op == "avg":
        # A complex number by its parts: numpy's own division by a complex one is not rounded to nearest.
        real = result.view(result.real.dtype)
        result = (real / real.dtype.type(len(parts))).view(result.dtype)
    return result
