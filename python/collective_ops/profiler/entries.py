"""The recorder's entries (docs/formats.md has the layout) into calls."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model import Call, Group, Peer, PlanStep

HEADER = 4096
_MAGIC = 0x4543415254504F43
_LAYOUT = (2, HEADER, 96, 32)
_ENTRY = struct.Struct("<HHI")
_CALL = struct.Struct("<8xQIiBBBBBBHQQqqqqqq")
_PEER = struct.Struct("<QQQQ")
_STEP = struct.Struct("<qQQ")
_CALL_ENTRY, _GROUP_ENTRY, _STEPS_ENTRY = 1, 2, 3
_BEGUN = 56  # offset in a call's entry
_SEVERAL = 0xFFFF
KINDS = (
    "barrier allReduce allGather reduceScatter broadcast reduce gather scatter alltoall allGatherV "
    "reduceScatterV gatherV scatterV alltoallV send receive"
).split()
_TYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 bool complex64 "
    "complex128 float8_e4m3"
).split()
_PATHS = ("none", "inline", "staged", "direct", "read")
_STEPS = ("", "wait", "copy", "reduce", "send", "receive")


@dataclass(frozen=True)
class Chunk:
    """Whole entries of one communicator, and what is known of it: about_file() and its groups so far."""

    about: dict[str, Any]
    data: bytes


def _text(page: bytes, offset: int, size: int) -> str:
    return page[offset : offset + size].split(b"\0", 1)[0].decode("utf-8", "replace")


def about_file(page: bytes, path: Path, pg_ranks: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What the header of a recorder's file says. Raises ValueError: it is none, or of another version."""
    if len(page) < HEADER or struct.unpack_from("<Q", page)[0] != _MAGIC:
        raise ValueError(f"{path}: no file of the recorder")
    layout = struct.unpack_from("<IIII", page, 8)
    if layout != _LAYOUT:
        raise ValueError(f"{path}: layout {layout} of the recorder; this version reads {_LAYOUT}")
    _rank, world_size = struct.unpack_from("<ii", page, 24)
    job = _text(page, 136, 512)
    title, ranks = "default_group", list(range(world_size))
    parts = job.split("-")
    if parts[0] == "c10d" and len(parts) >= 3:  # one of PyTorch's process groups
        name = "-".join(parts[1:-1])
        title = "default_group" if name == "0" else name
        ranks = list(pg_ranks.get(name, ranks))
    return {
        "job": path.name.split(".")[1],
        "world_size": world_size,
        "world": [title, ranks],
        "algorithms": [name for i in range(32) if (name := _text(page, 904 + 32 * i, 32))],
    }


def _walk(data: bytes) -> Any:
    """(kind, items, offset, bytes) of each entry. Raises ValueError where an entry cannot be."""
    at = 0
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError(f"the entry at byte {at} is cut off")
        kind, items, size = _ENTRY.unpack_from(data, at)
        if size < 8 or size % 8 or at + size > len(data):
            raise ValueError(f"the entry at byte {at} cannot be read")
        yield kind, items, at, size
        at += size


def _define(data: bytes, at: int, items: int, groups: dict[int, list[Any]]) -> None:
    number, name_bytes = struct.unpack_from("<II", data, at + 8)
    ranks = struct.unpack_from(f"<{items}I", data, at + 16)
    start = at + 16 + 4 * items
    groups[number] = [data[start : start + name_bytes].decode("utf-8", "replace"), list(ranks)]


def begun_before(data: bytes, limit: int, groups: dict[int, list[Any]]) -> bytes:
    """The entries of calls that began before `limit`; `groups` learns those that are defined."""
    kept, steps = [], b""
    try:
        for kind, items, at, size in _walk(data):
            if kind == _GROUP_ENTRY:
                _define(data, at, items, groups)
            elif kind == _STEPS_ENTRY:
                steps = data[at : at + size]
            elif kind == _CALL_ENTRY:
                if struct.unpack_from("<q", data, at + _BEGUN)[0] < limit:
                    kept += [steps, data[at : at + size]]
                steps = b""
    except ValueError as error:
        raise OSError(f"the recorder's file: {error}") from None
    return b"".join(kept)


class Decoder:
    """Makes calls of chunks, which come in the order in which they were taken."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}  # in which calls were made, by id
        self._named: dict[str, dict[int, list[Any]]] = {}

    def calls(self, chunk: Chunk, offset: int) -> list[Call]:
        """`offset`: from the monotonic clock to the real one. Raises ValueError where bytes are no
        entries."""
        about = chunk.about
        named = self._named.setdefault(about["job"], {})
        named.update({int(number): group for number, group in about.get("groups", {}).items()})
        calls: list[Call] = []
        steps: list[PlanStep] = []
        for kind, items, at, size in _walk(chunk.data):
            if kind == _GROUP_ENTRY:
                _define(chunk.data, at, items, named)
            elif kind == _STEPS_ENTRY and size == 16 + items * 24:
                steps = [_plan_step(chunk.data, at + 16 + 24 * i, offset) for i in range(items)]
            elif kind == _CALL_ENTRY and size == 96 + items * 32:
                call = self._call(about, named, chunk.data, at, items, offset)
                call.steps, steps = _of_world(steps, call, self.groups[call.group], about), []
                calls.append(call)
        return calls

    def _group(self, about: dict[str, Any], named: dict[int, list[Any]], number: int) -> Group:
        group_id = f"collective_ops%{about['job']}_{number}"
        if group_id not in self.groups:
            name, ranks = named.get(number, about["world"])
            self.groups[group_id] = Group(group_id, name, tuple(ranks))
        return self.groups[group_id]

    def _call(
        self,
        about: dict[str, Any],
        named: dict[int, list[Any]],
        data: bytes,
        at: int,
        items: int,
        offset: int,
    ) -> Call:
        values = _CALL.unpack_from(data, at)
        sequence, number, _root, kind, dtype, _op, path, algorithm, status, _longest, count, size = values[
            :12
        ]
        issued, begun, ended, waited, longest_wait, moved = values[12:]
        group = self._group(about, named, number)
        peers, bytes_of_all = [], 0
        for i in range(items):
            first, read, written, peer_moved = _PEER.unpack_from(data, at + 96 + 32 * i)
            peer = _world_rank(first & 0xFFFF, group, about)
            peers.append(Peer(peer, first >> 16, read, written, peer_moved))
            bytes_of_all += read + written
        if bytes_of_all and not any(peer.moved for peer in peers):  # not measured per peer: by bytes
            peers = _shared_out(peers, moved, bytes_of_all)
        algorithms, length = about["algorithms"], max(ended - begun, 0)
        return Call(
            kind=KINDS[kind] if kind < len(KINDS) else "unknown",
            group=group.id,
            sequence=sequence,
            start=begun + offset,
            end=begun + length + offset,
            issued=issued + offset,
            bytes=size,
            count=count,
            dtype=_TYPES[dtype] if dtype < len(_TYPES) else "",
            algorithm=algorithms[algorithm] if algorithm < len(algorithms) else "",
            path=_PATHS[path] if path < len(_PATHS) else "",
            status="ok" if status == 0 else f"error {status}",
            waited=min(max(waited, 0), length),
            longest_wait=min(longest_wait, length),
            peers=peers,
        )


def _world_rank(rank: int, group: Group, about: dict[str, Any]) -> int:
    """Ranks are of the communicator's world; of a process group of PyTorch these are its own."""
    world = about["world"][1]
    return world[rank] if rank < len(world) == about["world_size"] else rank


def _plan_step(data: bytes, at: int, offset: int) -> PlanStep:
    begun, packed, size = _STEP.unpack_from(data, at)
    kind, peer = packed & 0xFF, packed >> 8 & 0xFFFF
    name = _STEPS[kind] if kind < len(_STEPS) else f"step {kind}"
    return PlanStep(name, -1 if peer == _SEVERAL else peer, begun + offset, packed >> 24, size)


def _of_world(steps: list[PlanStep], call: Call, group: Group, about: dict[str, Any]) -> list[PlanStep]:
    return [
        PlanStep(s.kind, _world_rank(s.peer, group, about) if s.peer >= 0 else -1, s.start, s.length, s.bytes)
        for s in steps
        if call.start <= s.start and s.start + s.length <= call.end
    ]


def _shared_out(peers: list[Peer], moved: int, total: int) -> list[Peer]:
    """The call's moving time among the peers, by bytes; whole nanoseconds whose sum is the call's."""
    result, seen, given = [], 0, 0
    for peer in peers:
        seen += peer.read + peer.written
        upto = moved * seen // total
        result.append(Peer(peer.rank, peer.waited, peer.read, peer.written, upto - given))
        given = upto
    return result
