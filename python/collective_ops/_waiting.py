"""A line on standard error where ranks are waited for at length, so that a start does not look dead."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress

PATIENCE_S = 10.0
_SOCKETS = "/proc/net/unix"


class WaitingLine:
    """Called now and then while this rank waits to join: says, once, who is missing after PATIENCE_S."""

    def __init__(self, rank: int, world_size: int, job_id: str | None) -> None:
        self._identity = rank, world_size, job_id
        self._until = time.monotonic() + PATIENCE_S

    def __call__(self) -> None:
        if time.monotonic() >= self._until:
            self._until = math.inf
            _say(*self._identity)


def missing_ranks(world_size: int) -> list[int]:
    """The ranks of this process's job that listen nowhere on this host; [] where that cannot be told."""
    try:
        with open(_SOCKETS, encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    named = [(row[7], row[6]) for row in rows if len(row) == 8 and row[7].startswith("@collective-ops/")]
    own = _own_sockets()
    mine = [name for name, inode in named if inode in own]
    if not mine:
        return []
    job, present = mine[0].rpartition("/")[0], {name for name, _ in named}
    return [rank for rank in range(world_size) if f"{job}/{rank}" not in present]


def _own_sockets() -> set[str]:
    """The inodes of this process's sockets."""
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, as the listing's own is
            kind, _, inode = os.readlink(f"/proc/self/fd/{number}").partition(":")
            if kind == "socket":
                inodes.add(inode.strip("[]"))
    return inodes


def _say(rank: int, world_size: int, job_id: str | None) -> None:
    missing = missing_ranks(world_size)
    if not missing:
        whom = "the others"
    else:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        whom = f"rank{'s' if len(missing) > 1 else ''} {shown}"
    job = job_id or os.environ.get("COLLECTIVE_OPS_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID")
    named = f"job {job}" if job else f"the job of process {os.getppid()}, which started this rank"
    sys.stderr.write(f"collective_ops: rank {rank} of {world_size} waits for {whom} ({named})\n")
    sys.stderr.flush()
