"""The recorder of our calls, switched on for the steps of a profile, and what it wrote of this process.

The recorder belongs to the C++ core; every communicator of the process has a file of its own (docs/formats.md
has the layout). While training runs, bytes are copied as they are; entries.py makes calls of them later.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import entries

_log = logging.getLogger("collective_ops.profiler")
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_FOLDER = "collective_ops_recording"


def _core() -> Any:
    """None where the core is not built: then there are no calls of ours either."""
    try:
        from collective_ops import _core
    except ImportError:
        return None
    return _core


def recordable() -> list[tuple[str, int, int, int]]:
    """(job, rank, world size, run) of each of this process's communicators."""
    core = _core()
    return core.recordable() if core is not None else []


def run_of_job() -> str:
    """Equal on all ranks of one start; "" where no communicator knows it."""
    for job, _rank, world_size, run in recordable():
        # Of PyTorch's groups the one of all ranks: of others each has its own first rank.
        if run and world_size > 1 and (not job.startswith("c10d-") or job.startswith("c10d-0-")):
            return f"{run:016x}"
    return ""


def remove_left_over(parent: Path | None = None) -> None:
    """Folders of processes of this user that were killed while they recorded."""
    parent = parent or Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_FOLDER}_{os.getuid()}_*"):
        pid, space = [*folder.name.split("_"), "", ""][4:6]
        try:
            # In a container of its own the same number may be another process.
            if space == _pid_space() and pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _pid_space() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


@dataclass
class _File:
    """One communicator's file. `position` counts bytes of entries already taken."""

    path: Path
    descriptor: int
    about: dict[str, Any]
    position: int = 0
    freed: int = entries.HEADER
    groups: dict[int, list[Any]] = field(default_factory=dict)

    def value(self, offset: int) -> int:
        return struct.unpack("<Q", os.pread(self.descriptor, 8, offset))[0]


class CallReader:
    """Follows what the communicators of this process record. Between start() and close(), `take()` gives what
    came since the last time, `skip()` passes over it. Raises OSError where a file cannot be read.
    """

    def __init__(self, steps: bool = False, pg_ranks: dict[str, tuple[int, ...]] | None = None) -> None:
        self._steps = steps
        self._pg_ranks = pg_ranks or {}  # PyTorch's process groups: their ranks of the world
        self._folder: Path | None = None
        self._files: dict[str, _File] = {}
        self._on = False
        self.was_on = False  # also after close()

    def start(self) -> None:
        """Has every communicator of this process record, also those that join later."""
        core = _core()
        if core is None or self._on:
            return
        remove_left_over()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}_{os.getuid()}_{os.getpid()}_{_pid_space()}_"))
        try:
            core.record_calls(str(self._folder), self._steps)
        except Exception as error:  # noqa: BLE001 - of the core's own kinds
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            _log.warning("profile: calls are not recorded: %s", error)
            return
        self._on = self.was_on = True
        self.skip()  # where the job records anyway: what was before

    def take(self) -> list[entries.Chunk]:
        chunks = []
        for file in self._follow():
            data = self._rest(file)
            if data:
                chunks.append(entries.Chunk({**file.about, "groups": dict(file.groups)}, data))
            self._pass(file, len(data))
        return chunks

    def skip(self, keep_before: int = 0) -> list[entries.Chunk]:
        """Passes over what came, but for calls that began before `keep_before` (monotonic ns)."""
        chunks = []
        for file in self._follow():
            data = self._rest(file)
            kept = entries.begun_before(data, keep_before, file.groups)
            if kept:
                chunks.append(entries.Chunk({**file.about, "groups": dict(file.groups)}, kept))
            self._pass(file, len(data))
        return chunks

    def lost(self) -> int:
        """Calls that the recorder had no room for."""
        return sum(file.value(80) for file in self._files.values())

    def close(self) -> None:
        """Ends the recording that start() began, and removes its files."""
        if self._on:
            _core().stop_recording_calls()
        self._on = False
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _follow(self) -> list[_File]:
        if not self._on:
            return []
        for path in _core().recorded_files():
            if path not in self._files:
                self._files[path] = self._open(Path(path))
        return list(self._files.values())

    def _open(self, path: Path) -> _File:
        ours = self._folder is not None and path.parent == self._folder
        descriptor = os.open(path, os.O_RDWR if ours else os.O_RDONLY)
        try:
            about = entries.about_file(os.pread(descriptor, entries.HEADER, 0), path, self._pg_ranks)
        except ValueError as error:
            os.close(descriptor)
            raise OSError(str(error)) from None
        return _File(path, descriptor, about)

    def _rest(self, file: _File) -> bytes:
        length = file.value(64) - file.position
        parts = []
        at = entries.HEADER + file.position
        while length > 0:
            part = os.pread(file.descriptor, min(length, 1 << 26), at)
            if not part:
                raise OSError(f"{file.path}: {length} bytes that were recorded are not there")
            parts.append(part)
            at, length = at + len(part), length - len(part)
        return b"".join(parts)

    def _pass(self, file: _File, length: int) -> None:
        file.position += length
        if self._folder is not None and file.path.parent == self._folder:
            _free(file)


def _free(file: _File) -> None:
    """Gives the pages of what was taken back to the disk: only a profile's own recording is cut so."""
    end = (entries.HEADER + file.position) // 4096 * 4096
    if end - file.freed < 1 << 20:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(file.descriptor, _PUNCH_HOLE, file.freed, end - file.freed) == 0:
        file.freed = end
