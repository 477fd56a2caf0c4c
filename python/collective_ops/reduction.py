"""Reductions that a name alone does not say."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidArgumentError


@dataclass(frozen=True)
class PreMulSum:
    """The op of a sum of factor * element; made by `premul_sum`."""

    factor: float
    op = "premul_sum"


def premul_sum(factor: float) -> PreMulSum:
    """`op` of a sum in which this rank's elements are first multiplied by `factor`; ranks may differ in it.

    For floating and complex types. PyTorch's own such object is understood too.
    """
    try:
        return PreMulSum(float(factor))
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"premul_sum: factor={factor!r} is no real number") from None
