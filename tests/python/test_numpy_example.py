"""examples/numpy_allreduce.py, on two and three ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import collective_ops
import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_example(ranks: int) -> None:
    program = Path(__file__).parents[2] / "examples" / "numpy_allreduce.py"
    environment = os.environ | {
        "PYTHONPATH": str(Path(collective_ops.__path__[0]).parent),
        "COLLECTIVE_OPS_JOB_ID": f"numpy_allreduce_{os.getpid()}_{ranks}",
        "WORLD_SIZE": str(ranks),
    }
    started = [
        subprocess.Popen(
            [sys.executable, program],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    total = sum(10_000 + rank for rank in range(ranks))
    assert re.match(rf"{total} samples: mean 5\.0\d, spread (1\.9|2\.0)\d, from -[1-9]", outputs[0]), outputs
    assert outputs[1:] == [""] * (ranks - 1)
