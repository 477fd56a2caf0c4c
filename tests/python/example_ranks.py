"""Runs an example as a shell loop would: one process for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import collective_ops


def run_example(name: str, ranks: int, timeout: float = 60, **variables: str) -> list[str]:
    """What each rank of examples/`name` printed; every one must end well."""
    program = Path(__file__).parents[2] / "examples" / name
    environment = os.environ | {
        "PYTHONPATH": str(Path(collective_ops.__path__[0]).parent),
        "COLLECTIVE_OPS_JOB_ID": f"{program.stem}_{os.getpid()}_{ranks}",
        "WORLD_SIZE": str(ranks),
        **variables,
    }
    started = [
        subprocess.Popen(
            [sys.executable, program],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=timeout)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    return outputs
