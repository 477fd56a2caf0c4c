"""`collective-ops perf`: becomes the native program beside this file, which measures collectives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "_perf"


def run(arguments: list[str]) -> int:
    """Does not return where the program is there: so launchers see the rank that they have started."""
    if not PROGRAM.exists():
        raise FileNotFoundError(
            f"{PROGRAM} is not there; build it with `make build`, or install the package again"
        )
    sys.stdout.flush()
    os.execv(PROGRAM, [str(PROGRAM), *arguments])
