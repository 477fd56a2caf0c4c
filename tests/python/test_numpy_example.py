"""examples/numpy_allreduce.py, on two and three ranks."""

from __future__ import annotations

import re

import pytest
from example_ranks import run_example


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_example(ranks: int) -> None:
    outputs = run_example("numpy_allreduce.py", ranks)
    total = sum(10_000 + rank for rank in range(ranks))
    assert re.match(rf"{total} samples: mean 5\.0\d, spread (1\.9|2\.0)\d, from -[1-9]", outputs[0]), outputs
    assert outputs[1:] == [""] * (ranks - 1)
