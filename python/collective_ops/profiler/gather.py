"""All ranks' profiles on one host, over the job's own communicator.

Every rank tells rank 0 which files it has (name, size, SHA-256); rank 0 asks for those that it lacks or has
otherwise, checks what comes, and only then gives it its name. Where ranks share a file system, or an earlier
attempt was cut off, what is there already is not sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from . import runs

_CHUNK = 4 << 20


@dataclass(frozen=True)
class Gathered:
    """What rank 0 has after a gathering."""

    files: int  # that came now
    bytes: int
    kept: int  # that were there already
    ranks: tuple[int, ...]  # whose profiles lie there
    problems: tuple[str, ...]


class Wire:
    """Bytes between two ranks, over our communicator where it is joined, else torch.distributed's."""

    def __init__(self) -> None:
        import collective_ops

        if collective_ops.is_initialized():
            self._send: Callable[[bytearray, int], Any] = collective_ops.send
            self._recv: Callable[[bytearray, int], Any] = collective_ops.recv
            return
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            raise ValueError("profile gather: this rank has joined no job")
        import torch

        self._send = lambda data, rank: dist.send(torch.frombuffer(data, dtype=torch.uint8), rank)
        self._recv = lambda data, rank: dist.recv(torch.frombuffer(data, dtype=torch.uint8), rank)

    def send(self, data: bytes, rank: int) -> None:
        self._send(bytearray(len(data).to_bytes(8, "little")), rank)
        if data:
            self._send(bytearray(data), rank)

    def recv(self, rank: int) -> bytes:
        length = bytearray(8)
        self._recv(length, rank)
        data = bytearray(int.from_bytes(length, "little"))
        if data:
            self._recv(data, rank)
        return bytes(data)


def in_job(root: Path, rank: int, world_size: int) -> Gathered | None:
    """Called by all ranks of a job; on rank 0 `root` has all their profiles then. None on the others."""
    own = _manifest(root, rank)
    if world_size == 1:
        return Gathered(0, 0, len(own), (rank,) if own else (), ())
    wire = Wire()
    if rank != 0:
        wire.send(json.dumps(own).encode(), 0)
        for name in json.loads(wire.recv(0)):
            for chunk in _chunks(_below(root, name)):
                wire.send(chunk, 0)
            wire.send(b"", 0)
        return None
    total = _Total(len(own), {0} if own else set())
    for source in range(1, world_size):
        _take(wire, root, source, total)
    total.done()
    return Gathered(total.files, total.bytes, total.kept, tuple(sorted(total.ranks)), tuple(total.problems))


@dataclass
class _Total:
    kept: int
    ranks: set[int]
    files: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self._shown = sys.stderr.isatty()

    def show(self, rank: int, done: int, whole: int) -> None:
        if self._shown:
            filled = 30 * done // max(whole, 1)
            bar = "#" * filled + "." * (30 - filled)
            print(f"\rprofiles of rank {rank}: [{bar}] {done / 1e6:.1f} MB", end="", file=sys.stderr)

    def done(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _take(wire: Wire, root: Path, source: int, total: _Total) -> None:
    """One rank's files, those first that can be checked."""
    told = json.loads(wire.recv(source))
    wanted = []
    for name, size, digest in told:
        path = _below(root, name)
        if path.is_file() and path.stat().st_size == size and _digest(path) == digest:
            total.kept += 1
        else:
            wanted.append((name, size, digest))
    if told:
        total.ranks.add(source)
    wire.send(json.dumps([name for name, _, _ in wanted]).encode(), source)
    done, whole = 0, sum(size for _, size, _ in wanted)
    for name, size, digest in wanted:
        problem = _receive(wire, _below(root, name), source, digest)
        if problem:
            total.problems.append(f"rank {source}: {name}: {problem}")
        else:
            total.files, total.bytes = total.files + 1, total.bytes + size
        done += size
        total.show(source, done, whole)


def _receive(wire: Wire, path: Path, source: int, digest: str) -> str:
    """Writes one file; returns what is wrong with it. Reads the file to its end whatever goes wrong here."""
    beside = path.with_name(f".{path.name}.part")
    problem, check = "", hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        out = beside.open("wb")
    except OSError as error:
        problem, out = str(error), None
    while chunk := wire.recv(source):
        check.update(chunk)
        if out is not None and not problem:
            try:
                out.write(chunk)
            except OSError as error:
                problem = str(error)
    if out is not None:
        out.close()
    if not problem and check.hexdigest() != digest:
        problem = "the file changed while it was read; gather again"
    if problem:
        beside.unlink(missing_ok=True)
    else:
        os.replace(beside, path)
    return problem


def _manifest(root: Path, rank: int) -> list[tuple[str, int, str]]:
    """(name below the root, size, digest) of this rank's own profiles, wherever below `root` they lie."""
    files = []
    for profile in runs.find_profiles(root):
        if profile.rank != rank:
            continue
        for path in sorted(profile.path.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                name = PurePosixPath(path.relative_to(root).as_posix())
                files.append((str(name), path.stat().st_size, _digest(path)))
    return files


def _below(root: Path, name: str) -> Path:
    """The path of a name that another rank told. Raises ValueError where that leads out of the folder."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"profile gather: {name} is no path inside of {root}")
    return root.joinpath(*pure.parts)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError:  # gone meanwhile: rank 0 finds that the digest is another
        return


def _digest(path: Path) -> str:
    check = hashlib.sha256()
    for chunk in _chunks(path):
        check.update(chunk)
    return check.hexdigest()


def flatten(root: Path, output: Path) -> list[runs.Found]:
    """Copies the profiles that lie below `root`, at any depth, to `output`/<rank>/<name>: one layout for all.
    What is there already, whole, stays. Returns the profiles found. Raises OSError."""
    found = runs.find_profiles(root, depth=8)
    for profile in found:
        target = output / str(profile.rank) / profile.path.name
        if target.resolve() == profile.path.resolve() or runs.info_of(target):
            continue
        beside = target.with_name(f".{target.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(profile.path, beside)
        os.replace(beside, target)
    return found
