"""The jobs of this user that run on this host, as their shared memory and /proc show them.

The ranks of a group hold a memory file of a known name, in which each of them keeps what it does. Reading it
through /proc/PID/fd takes no part in the job: no lock, no signal, no stop, whatever state the ranks are in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import _core

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device or disk",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
    "I": "idle",
}


@dataclass(frozen=True)
class Process:
    """A process that holds a group's memory: a rank, or a child of one."""

    pid: int
    inner_pid: int  # in its own PID namespace, as the group's memory names it
    state: str  # one letter of STATES
    parents: tuple[int, ...]


@dataclass
class Rank:
    rank: int  # in the group
    pid: int  # 0: has not joined
    activity: str  # absent, outside, waiting, busy, left; dead where its process is gone
    issued: int  # calls begun
    finished: int
    call: str  # call number `issued`; "" where it has not been announced
    waits_for: int | None
    waited_s: float | None  # in this call
    process_state: str  # a letter of STATES; "" where there is no process
    world_rank: int = -1  # in the job; -1: as in the group
    elsewhere: str = ""  # what it waits for outside of this group's calls: "waits in recv of ..."

    @property
    def number(self) -> int:
        """By which reports name it: its rank in the job."""
        return self.rank if self.world_rank < 0 else self.world_rank


@dataclass
class Group:
    """A set of ranks that call together. `ranks` is empty while they have not all come."""

    id: str  # of its memory
    job: str
    ranks: list[Rank] = field(default_factory=list)
    failure_code: str = ""  # why the group is broken
    failure: str = ""
    processes: list[Process] = field(default_factory=list)  # all that hold its memory
    problem: str = ""  # why it could not be read
    is_world: bool = True  # all ranks of the job; else a group of some of them
    name: str = ""  # of such a group

    @property
    def label(self) -> str:
        """'group "tp" of ranks 4,5'; "" for all ranks of a job."""
        if self.is_world:
            return ""
        ranks = ",".join(str(rank.number) for rank in self.ranks) or "?"
        name = f'"{self.name}" ' if self.name else ""
        return f"group {name}of rank{'' if len(self.ranks) == 1 else 's'} {ranks}"

    def belongs_to(self, pid: int) -> bool:
        """Whether `pid` is one of its processes, or started one of them."""
        return any(pid == process.pid or pid in process.parents for process in self.processes)


def find_groups(proc: Path = Path("/proc")) -> list[Group]:
    """All groups of which this user may see a process, job by job: first all its ranks, then others."""
    holders: dict[str, list[Process]] = {}
    groups: dict[str, Group] = {}
    for pid in _own_processes(proc):
        for identity, path in _control_segments(proc, pid):
            process = _process(proc, pid)
            if process is None:
                continue
            if identity not in groups:
                group = _read_group(identity, path)
                if group is None:
                    continue
                groups[identity] = group
            held = holders.setdefault(identity, [])
            if all(known.pid != pid for known in held):
                held.append(process)
    for identity, group in groups.items():
        group.processes = sorted(holders[identity], key=lambda process: process.pid)
        _add_processes(group)
    _tell_groups(list(groups.values()))
    return sorted(
        groups.values(),
        key=lambda group: (group.job, not group.is_world, group.processes[0].pid, group.label),
    )


def _own_processes(proc: Path) -> Iterator[int]:
    user = os.geteuid()
    for entry in os.scandir(proc):
        try:
            if entry.name.isdigit() and user in (0, entry.stat().st_uid):
                yield int(entry.name)
        except OSError:
            continue  # it has ended meanwhile


def _control_segments(proc: Path, pid: int) -> Iterator[tuple[str, str]]:
    """(identity, path) of each group's memory that a process holds."""
    wanted = f"/memfd:{_core.control_segment_name}"
    folder = proc / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # ended, or not ours to look into
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path).split(" ")[0] == wanted:
                about = os.stat(path)
                yield f"{about.st_dev}:{about.st_ino}", path
        except OSError:
            continue


def _process(proc: Path, pid: int) -> Process | None:
    try:
        state, parent = _state_and_parent(proc, pid)
        status = (proc / str(pid) / "status").read_text(errors="replace")
    except (OSError, ValueError, IndexError):
        return None
    inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), str(pid))
    parents = []
    while parent > 1 and len(parents) < 100:
        parents.append(parent)
        try:
            _, parent = _state_and_parent(proc, parent)
        except (OSError, ValueError, IndexError):
            break
    return Process(pid, int(inner), state, tuple(parents))


def _state_and_parent(proc: Path, pid: int) -> tuple[str, int]:
    # The command's name, in parentheses, may hold anything.
    fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _read_group(identity: str, path: str) -> Group | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = os.pread(file, _core.status_bytes, 0)
    finally:
        os.close(file)
    now = time.monotonic_ns()
    try:
        found = _core.group_status(memory)
    except ValueError as error:
        return Group(identity, "", problem=str(error))
    group = Group(
        identity,
        found["job"],
        failure_code=found["failure_code"],
        failure=found["failure"],
        is_world=found["is_world"],
        name=found["name"],
    )
    for rank in found["ranks"]:
        since = rank.pop("since_ns")
        waited = max(0, now - since) / 1e9 if since and rank["waits_for"] is not None else None
        group.ranks.append(Rank(**rank, waited_s=waited, process_state=""))
    return group


def _tell_groups(groups: list[Group]) -> None:
    """The world's memory alone says what a rank waits for elsewhere; reports of other groups need it, too."""
    notes = {rank.pid: rank.elsewhere for group in groups if group.is_world for rank in group.ranks}
    for group in groups:
        for rank in group.ranks:
            if not group.is_world and rank.activity == "outside":
                rank.elsewhere = notes.get(rank.pid, "")


def _add_processes(group: Group) -> None:
    """What only the system knows of the ranks: which live, and as what."""
    by_inner = {process.inner_pid: process for process in group.processes}
    for rank in group.ranks:
        process = by_inner.get(rank.pid)
        if process is not None and process.state not in "ZX":
            rank.pid, rank.process_state = process.pid, process.state
        elif rank.pid and rank.activity != "left":
            rank.activity, rank.waits_for, rank.waited_s = "dead", None, None
