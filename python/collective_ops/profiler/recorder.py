"""The calls of this process, read from its recorder's files while it runs (docs/formats.md has the layout).

The recorder belongs to the C++ core: COLLECTIVE_OPS_TRACE=1 when the ranks join switches it on, and every
communicator of the process has a file. Here they are followed entry by entry; what is before the steps of
interest is given back to the disk where the recorder was switched on for the profile alone.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .model import Call, Group, Peer

_MAGIC = 0x4543415254504F43
_PAGE = 4096
_CALL = struct.Struct("<8xQIiBBBBBBHQQqqqqqq")
_PEER = struct.Struct("<QQQQ")
_KINDS = (
    "barrier allReduce allGather reduceScatter broadcast reduce gather scatter alltoall allGatherV "
    "reduceScatterV gatherV scatterV alltoallV send receive"
).split()
_TYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 bool complex64 "
    "complex128 float8_e4m3"
).split()
_PATHS = ("none", "inline", "staged", "direct", "read")
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_ENTRIES_AT_ONCE = 1 << 22  # bytes read at once

_STALE_S = 24 * 3600

_ours = False


def switch_on() -> None:
    """Has the communicators that join from now on record, into a folder for temporary files unless the user
    records anyway. Called while flags are read, before the ranks join; later it has no effect on them."""
    global _ours
    if os.environ.get("COLLECTIVE_OPS_TRACE", "0") not in ("", "0") or _ours:
        return
    # The ranks of one start share the folder: they are children of one launcher.
    start = f"collective_ops_profile_{os.getuid()}_"
    folder = Path(tempfile.gettempdir()) / f"{start}{os.getppid()}"
    _remove_stale(folder.parent, start)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return
    except OSError:  # without the recorder the profile has what PyTorch saw of the calls
        return
    os.environ["COLLECTIVE_OPS_TRACE"] = "1"
    os.environ["COLLECTIVE_OPS_TRACE_DIR"] = str(folder)
    _ours = True


def _remove_stale(parent: Path, start: str) -> None:
    """Folders of jobs whose launcher is gone, a day after the last change in them."""
    for folder in parent.glob(f"{start}*"):
        launcher = folder.name.removeprefix(start)
        try:
            if Path(f"/proc/{launcher}").exists() or folder.stat().st_uid != os.getuid():
                continue
            changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - changed > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another rank removes it too
            continue


@dataclass
class _File:
    """One communicator's file. `position` counts bytes of entries already taken."""

    path: Path
    descriptor: int
    job: str
    job_hash: str
    rank: int
    world_size: int
    algorithms: list[str]
    position: int = 0
    freed: int = _PAGE
    groups: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def committed(self) -> int:
        return struct.unpack("<Q", os.pread(self.descriptor, 8, 64))[0]

    def lost(self) -> int:
        return struct.unpack("<Q", os.pread(self.descriptor, 8, 80))[0]


def _text(page: bytes, offset: int, size: int) -> str:
    return page[offset : offset + size].split(b"\0", 1)[0].decode("utf-8", "replace")


def _open(path: Path) -> _File | None:
    """The file, if this process writes it."""
    descriptor = os.open(path, os.O_RDWR if _ours else os.O_RDONLY)
    page = os.pread(descriptor, _PAGE, 0)
    if len(page) == _PAGE:
        magic, version, header, call, peer, rank, world, pid = struct.unpack_from("<QIIIIiiq", page)
        layout = (version, header, call, peer)
        closed = struct.unpack_from("<Q", page, 88)[0]  # an older process of this number may have left one
        if magic == _MAGIC and layout == (1, _PAGE, 96, 32) and pid == os.getpid() and not closed:
            names = [_text(page, 904 + 32 * i, 32) for i in range(32)]
            job_hash = path.name.split(".")[1]
            return _File(path, descriptor, _text(page, 136, 512), job_hash, rank, world, names)
    os.close(descriptor)
    return None


class CallReader:
    """Follows the files of this process. `read()` gives the calls that ended since the last time, with times
    of CLOCK_MONOTONIC; `skip()` passes over them. Raises OSError where a file cannot be read."""

    def __init__(self, pg_ranks: dict[str, tuple[int, ...]] | None = None) -> None:
        self.folder = Path(os.environ.get("COLLECTIVE_OPS_TRACE_DIR") or ".").absolute()
        self.groups: dict[str, Group] = {}
        self.pg_ranks = pg_ranks or {}  # PyTorch's process groups: their ranks of the world
        self._files: dict[Path, _File | None] = {}

    @property
    def on(self) -> bool:
        self._find()
        return any(self._files.values())

    @property
    def run(self) -> str:
        """Equal on all ranks of one start; "" before the ranks have joined."""
        for file in self._own():
            # Of PyTorch's groups the one of all ranks: of others each has its own first rank.
            if file.world_size > 1 and (not file.job.startswith("c10d-") or file.job.startswith("c10d-0-")):
                run = struct.unpack("<Q", os.pread(file.descriptor, 8, 40))[0]
                return f"{run:016x}" if run else ""
        return ""

    def skip(self) -> None:
        self._advance(keep=False)

    def read(self) -> list[Call]:
        return self._advance(keep=True)

    def lost(self) -> int:
        """Calls that the recorder had no room for."""
        return sum(file.lost() for file in self._own())

    def retire(self) -> None:
        """Ends what a profile alone has recorded: in place of each file an empty, closed one, so that nothing
        of it is merged when the ranks leave. `skip()` still gives back what the core goes on to write."""
        for file in self._own() if _ours else ():
            page = bytearray(os.pread(file.descriptor, _PAGE, 0))
            struct.pack_into("<QQQQ", page, 64, 0, 0, 0, 1)
            fresh = file.path.with_suffix(".empty")
            fresh.write_bytes(page)
            fresh.replace(file.path)

    def close(self) -> None:
        for file in self._own():
            os.close(file.descriptor)
        self._files.clear()

    def _find(self) -> None:
        try:
            paths = sorted(self.folder.glob("comm_trace.*.rank*.bin"))
        except OSError:
            return
        for path in paths:
            if path not in self._files:
                try:
                    self._files[path] = _open(path)
                except OSError:  # another rank's, merged and removed meanwhile
                    continue

    def _own(self) -> list[_File]:
        return [file for file in self._files.values() if file is not None]

    def _advance(self, keep: bool) -> list[Call]:
        self._find()
        calls: list[Call] = []
        for file in self._own():
            end = file.committed()
            while file.position < end:
                length = min(end - file.position, _ENTRIES_AT_ONCE)
                data = os.pread(file.descriptor, length, _PAGE + file.position)
                used = self._entries(file, data, calls if keep else None)
                if used == 0:
                    raise OSError(f"{file.path}: the entry at byte {file.position} cannot be read")
                file.position += used
            if _ours:
                _free(file)
        return calls

    def _entries(self, file: _File, data: bytes, calls: list[Call] | None) -> int:
        """Takes the whole entries of `data`; returns their bytes."""
        at = 0
        while at + 8 <= len(data):
            kind, items, size = struct.unpack_from("<HHI", data, at)
            if size < 8 or size % 8 or at + size > len(data):
                break
            if kind == 2:
                self._define(file, data, at, items)
            elif kind == 1 and calls is not None:
                calls.append(self._call(file, data, at, items))
            at += size
        return at

    def _define(self, file: _File, data: bytes, at: int, items: int) -> None:
        number, name_bytes = struct.unpack_from("<II", data, at + 8)
        ranks = struct.unpack_from(f"<{items}I", data, at + 16)
        start = at + 16 + 4 * items
        file.groups[number] = (data[start : start + name_bytes].decode("utf-8", "replace"), ranks)

    def _group(self, file: _File, number: int) -> Group:
        group_id = f"collective_ops%{file.job_hash}_{number}"
        if group_id not in self.groups:
            name, ranks = file.groups.get(number, ("default_group", tuple(range(file.world_size))))
            parts = file.job.split("-")
            if number == 0 and parts[0] == "c10d" and len(parts) >= 3:  # one of PyTorch's process groups
                title = "-".join(parts[1:-1])
                name = "default_group" if title == "0" else title
                ranks = self.pg_ranks.get(title, ranks)
            self.groups[group_id] = Group(group_id, name, tuple(ranks))
        return self.groups[group_id]

    def _call(self, file: _File, data: bytes, at: int, items: int) -> Call:
        values = _CALL.unpack_from(data, at)
        sequence, number, _root, kind, dtype, _op, path, algorithm, status, _longest, count, size = values[
            :12
        ]
        issued, begun, ended, waited, longest_wait, moved = values[12:]
        group = self._group(file, number)
        # Peers are ranks of the communicator's world; of a process group of PyTorch these are its own.
        world = group.ranks if number == 0 and len(group.ranks) == file.world_size else None
        peers, bytes_of_all = [], 0
        for i in range(items):
            first, read, written, peer_moved = _PEER.unpack_from(data, at + 96 + 32 * i)
            peer = first & 0xFFFF
            peer = world[peer] if world is not None and peer < len(world) else peer
            peers.append(Peer(peer, first >> 16, read, written, peer_moved))
            bytes_of_all += read + written
        if bytes_of_all and not any(peer.moved for peer in peers):  # not measured per peer: by bytes
            peers = _shared_out(peers, moved, bytes_of_all)
        return Call(
            kind=_KINDS[kind] if kind < len(_KINDS) else "unknown",
            group=group.id,
            sequence=sequence,
            start=begun,
            end=max(ended, begun),
            issued=issued,
            bytes=size,
            count=count,
            dtype=_TYPES[dtype] if dtype < len(_TYPES) else "",
            algorithm=file.algorithms[algorithm] if algorithm < len(file.algorithms) else "",
            path=_PATHS[path] if path < len(_PATHS) else "",
            status="ok" if status == 0 else f"error {status}",
            waited=min(max(waited, 0), max(ended - begun, 0)),
            longest_wait=min(longest_wait, max(ended - begun, 0)),
            peers=peers,
        )


def _shared_out(peers: list[Peer], moved: int, total: int) -> list[Peer]:
    """The call's moving time among the peers, by bytes; whole nanoseconds whose sum is the call's."""
    result, seen, given = [], 0, 0
    for peer in peers:
        seen += peer.read + peer.written
        upto = moved * seen // total
        result.append(Peer(peer.rank, peer.waited, peer.read, peer.written, upto - given))
        given = upto
    return result


def _free(file: _File) -> None:
    """Gives the pages of what was taken back to the disk: only a profile's own recording is cut so."""
    end = (_PAGE + file.position) // _PAGE * _PAGE
    if end - file.freed < 1 << 20:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(file.descriptor, _PUNCH_HOLE, file.freed, end - file.freed) == 0:
        file.freed = end
