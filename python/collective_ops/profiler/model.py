"""What one rank did in one recorded step, as the writers take it. Times are int nanoseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def group_hash(group_id: str) -> str:
    """The number by which the Ascend files call a group; "" stays ""."""
    if not group_id:
        return ""
    high = low = 0
    for byte in group_id.encode():
        high = (high * 29 + byte) % 2**32
        low = (low * 131 + byte) % 2**32
    return str(high << 32 | low)


@dataclass(frozen=True)
class Group:
    """A communicator's group. `id` is equal on all its ranks; `ranks` are the world's, () where unknown."""

    id: str
    name: str
    ranks: tuple[int, ...] = ()

    @property
    def hash(self) -> str:
        return group_hash(self.id)

    def local(self, rank: int) -> int:
        """The rank in the group of a rank of the world."""
        return self.ranks.index(rank) if rank in self.ranks else rank


@dataclass(frozen=True)
class Peer:
    """Between this rank and one other in one call. Each byte is counted by one of the two."""

    rank: int  # of the world
    waited: int = 0
    read: int = 0
    written: int = 0
    moved: int = 0  # ns


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One thing that a rank did in a call, one after the other."""

    kind: str  # wait, copy, reduce, send, receive
    peer: int  # of the world; the rank itself: within its own memory; -1: several at once
    start: int
    length: int
    bytes: int

    def moved_to(self, start: int) -> PlanStep:
        return PlanStep(self.kind, self.peer, start, self.length, self.bytes)


@dataclass
class Call:
    """One collective, or one message."""

    kind: str  # allReduce, allGather, send ...
    group: str  # Group.id
    sequence: int
    start: int
    end: int
    issued: int = 0
    bytes: int = 0
    count: int = 0
    dtype: str = ""
    algorithm: str = ""
    path: str = ""
    status: str = "ok"
    waited: int | None = None  # None: nobody measured it
    longest_wait: int = 0
    peers: list[Peer] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)  # level2

    @property
    def point_to_point(self) -> bool:
        return self.kind in ("send", "receive")

    @property
    def moved(self) -> int:
        return self.end - self.start - (self.waited or 0)

    def name(self, hash_text: str) -> str:
        """As the Ascend profiler calls its operators; equal on all ranks of a collective."""
        return f"hcom_{self.kind}__{hash_text[-3:] or '0'}_{self.sequence}_1"


@dataclass(slots=True)
class Operator:
    """An operator of PyTorch on one thread."""

    name: str
    start: int
    end: int
    tid: int
    arguments: dict[str, Any]
    parent: int = -1  # index of the operator around it on its thread
    shapes: str | None = None  # made when first asked for: tables.shapes


@dataclass(slots=True)
class Allocation:
    """A change of the allocator's memory."""

    time: int
    tid: int
    bytes: int  # negative: freed
    address: int
    allocated: int
    reserved: int


@dataclass
class Step:
    number: int
    begin: int
    end: int
    operators: list[Operator] = field(default_factory=list)
    # (thread, begin, end, issues communication) of outermost operators, where their names are not recorded.
    activity: list[tuple[int, int, int, int]] = field(default_factory=list)
    functions: list[Operator] = field(default_factory=list)  # of Python, with stacks
    annotations: list[Operator] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # all that overlap the step
    resident: tuple[tuple[int, int], ...] = ()  # (time, bytes of the process)
    damaged: int = 0  # events that could not be used
    kernels: list[Any] | None = None  # made when first asked for: parts.kernels_of

    def own_calls(self) -> list[Call]:
        """Those that began in it; the others' parts count in the sums alone."""
        return [call for call in self.calls if self.begin <= call.start < self.end]


@dataclass
class RankData:
    """All recorded steps of one rank."""

    rank: int
    world_size: int
    steps: list[Step]
    groups: dict[str, Group]
    local_world_size: int = 0
    options: dict[str, Any] = field(default_factory=dict)  # of ProfileConfig
    pid: int = 0
    host: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def level(self) -> int:
        return int(str(self.options.get("level", "level1"))[-1])

    def on(self, option: str) -> bool:
        return bool(self.options.get(option))

    def transport(self, peer: int) -> str:
        """LOCAL: the rank itself; HCCS: shared memory of one host; RDMA: between hosts."""
        if peer == self.rank:
            return "LOCAL"
        size = self.local_world_size or self.world_size
        return "HCCS" if peer // size == self.rank // size else "RDMA"
