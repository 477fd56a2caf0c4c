"""All ranks' profiles of one run on one host, over the job's own communicator.

Every rank tells rank 0 which runs it has profiles of; rank 0 says which one is wanted. Then every rank tells
which files it has of that (name, size, SHA-256); rank 0 asks for those that it lacks or has otherwise, checks
what comes, and only then gives it its name. Where ranks share a file system, or an earlier attempt was cut
off, what is there already is not sent again; nor is what rank 0 has made anew since, to align the clocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from . import alignment, outputs, runs

_CHUNK = 4 << 20
_RECEIPT = ".gathered.json"  # in a profile that came: of files made anew here, the digests there and here


@dataclass(frozen=True)
class Gathered:
    """What rank 0 has after a gathering."""

    files: int  # that came now
    bytes: int
    kept: int  # that were there already
    ranks: tuple[int, ...]  # whose profiles lie there
    problems: tuple[str, ...]
    run: str = ""
    other_runs: tuple[str, ...] = ()  # of which profiles lie there too, and were left alone
    clocks: tuple[str, ...] = ()  # of other hosts: how they were aligned


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


def in_job(root: Path, rank: int, world_size: int, run: str = "") -> Gathered | None:
    """Called by all ranks of a job; on rank 0 `root` has all their profiles of `run` then (default: of the
    run that began last). None on the others. Raises ValueError on rank 0, once all have been told: nobody has
    that run."""
    found = runs.find_profiles(root, depth=8)
    known = {profile.run: profile.started for profile in found}
    if world_size == 1:
        chosen = choose_run(known, run)
        files = sum(len(_files(p)) for p in found if p.run == chosen)
        ranks = tuple(sorted({p.rank for p in found if p.run == chosen}))
        return Gathered(0, 0, files, ranks, (), chosen, tuple(sorted(known.keys() - {chosen})))
    wire = Wire()
    if rank != 0:
        wire.send(json.dumps(known).encode(), 0)
        chosen = wire.recv(0).decode()
        _offer(wire, [p for p in found if p.run == chosen and p.rank == rank])
        return None
    for source in range(1, world_size):
        known.update(json.loads(wire.recv(source)))
    chosen, problem = "", ""
    try:
        chosen = choose_run(known, run)
    except ValueError as error:  # told when the others do not wait any more
        problem = str(error)
    for source in range(1, world_size):
        wire.send(chosen.encode(), source)
    here = [profile for profile in found if profile.run == chosen]
    own = [profile for profile in here if profile.rank == 0]
    total = _Total(sum(len(_files(p)) for p in own), {0} if own else set())
    came: dict[Path, dict[str, str]] = {}
    for source in range(1, world_size):
        _take(wire, _Places(root, here), source, total, came)
    total.done()
    if problem:
        raise ValueError(f"profile gather: {problem}")
    told = align(root, chosen, total.fresh)
    for folder, digests in came.items():
        _write_receipt(folder, digests)
    return Gathered(
        files=total.files,
        bytes=total.bytes,
        kept=total.kept,
        ranks=tuple(sorted(total.ranks)),
        problems=tuple(total.problems),
        run=chosen,
        other_runs=tuple(sorted(known.keys() - {chosen})),
        clocks=tuple(told),
    )


def align(root: Path, run: str, fresh: Iterable[Path] = ()) -> list[str]:
    """The profiles of a run, once all are here, onto one clock; `fresh` are folders into which files came
    that are not on it yet. Returns what is to be told."""
    changed, told = alignment.align(p for p in runs.find_profiles(root, depth=8) if p.run == run)
    folders = {profile.path for profile in changed}
    folders |= {folder for folder in fresh if runs.info_of(folder).get(runs.MARK, {}).get("clock")}
    for folder in sorted(folders):
        try:
            outputs.write(folder)
        except ValueError as error:
            told.append(str(error))
    return told


def choose_run(known: dict[str, str], wanted: str) -> str:
    """Of the runs with the times of their start. Raises ValueError: there are none, or not the wanted one."""
    if not known:
        raise ValueError("no rank has a profile that collective-ops made")
    if not wanted:
        return max(known, key=lambda run: (known[run], run))
    if wanted not in known:
        raise ValueError(f"no profile is of the run {wanted}; there are {', '.join(sorted(known))}")
    return wanted


def _offer(wire: Wire, mine: list[runs.Found]) -> None:
    """Tells rank 0 what there is, and sends what it asks for."""
    files = {f"{p.path.name}/{name}": path for p in mine for name, path in _files(p)}
    told = [(name, path.stat().st_size, _digest(path)) for name, path in files.items()]
    wire.send(json.dumps(told).encode(), 0)
    for name in json.loads(wire.recv(0)):
        for chunk in _chunks(files[name]):
            wire.send(chunk, 0)
        wire.send(b"", 0)


class _Places:
    """Where rank 0 puts a profile of another rank: where it has it already, at whatever depth; else beside
    the others of this run, as RANK/PROFILE."""

    def __init__(self, root: Path, here: list[runs.Found]) -> None:
        self._known = {(p.rank, p.path.name): p.path for p in here}
        beside = [p.path.parent.parent for p in here if p.path.parent.name == str(p.rank)]
        self._base = beside[0] if beside else root

    def of(self, rank: int, name: str) -> tuple[Path, Path]:
        """The profile's folder, and the file in it."""
        profile, _, rest = name.partition("/")
        folder = self._known.get((rank, profile)) or _below(self._base / str(rank), profile)
        return folder, _below(folder, rest)


@dataclass
class _Total:
    kept: int
    ranks: set[int]
    files: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self.fresh: set[Path] = set()  # folders into which something came
        self._shown = sys.stderr.isatty()

    def show(self, rank: int, done: int, whole: int) -> None:
        if self._shown:
            filled = 30 * done // max(whole, 1)
            bar = "#" * filled + "." * (30 - filled)
            print(f"\rprofiles of rank {rank}: [{bar}] {done / 1e6:.1f} MB", end="", file=sys.stderr)

    def done(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _take(wire: Wire, places: _Places, source: int, total: _Total, came: dict[Path, dict[str, str]]) -> None:
    """One rank's files, but for those that are here; `came` learns the digest of each, by folder and path."""
    told = json.loads(wire.recv(source))
    wanted = []
    receipts: dict[Path, dict[str, list[str]]] = {}
    for name, size, digest in told:
        folder, path = places.of(source, name)
        if folder not in came:
            came[folder], receipts[folder] = {}, _read_receipt(folder)
        inside = path.relative_to(folder).as_posix()
        came[folder][inside] = digest
        here = _digest(path) if path.is_file() else ""
        if here and (here == digest or [digest, here] == receipts[folder].get(inside)):
            total.kept += 1
        else:
            wanted.append((name, size, digest))
    if told:
        total.ranks.add(source)
    wire.send(json.dumps([name for name, _, _ in wanted]).encode(), source)
    done, whole = 0, sum(size for _, size, _ in wanted)
    for name, size, digest in wanted:
        folder, path = places.of(source, name)
        problem = _receive(wire, path, source, digest)
        if problem:
            total.problems.append(f"rank {source}: {name}: {problem}")
        else:
            total.fresh.add(folder)
            total.files, total.bytes = total.files + 1, total.bytes + size
        done += size
        total.show(source, done, whole)


def _read_receipt(folder: Path) -> dict[str, list[str]]:
    try:
        content = json.loads((folder / _RECEIPT).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_receipt(folder: Path, digests: dict[str, str]) -> None:
    """What was made anew since it came is known again by the digest that it came with."""
    receipt = {}
    if runs.info_of(folder).get(runs.MARK, {}).get("clock"):
        here = {name: _digest(folder / name) for name in digests if (folder / name).is_file()}
        receipt = {name: [digests[name], digest] for name, digest in here.items() if digest != digests[name]}
    if receipt:
        runs.write_whole(folder / _RECEIPT, json.dumps(receipt))
    else:
        (folder / _RECEIPT).unlink(missing_ok=True)


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


def _files(profile: runs.Found) -> list[tuple[str, Path]]:
    """(name below the profile, path) of what belongs to it."""
    return [
        (path.relative_to(profile.path).as_posix(), path)
        for path in sorted(profile.path.rglob("*"))
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    ]


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


def flatten(root: Path, output: Path, run: str = "") -> tuple[list[runs.Found], list[str]]:
    """Copies the profiles of one run that lie below `root`, at any depth, to `output`/<rank>/<name>: one
    layout for all. `run` "": the one that began last. What is there already, whole, stays. Returns the
    profiles, and the runs that were left alone. Raises OSError, ValueError."""
    found = runs.find_profiles(root, depth=8)
    known = {profile.run: profile.started for profile in found}
    chosen = choose_run(known, run)
    mine = [profile for profile in found if profile.run == chosen]
    for profile in mine:
        target = output / str(profile.rank) / profile.path.name
        if target.resolve() == profile.path.resolve() or runs.info_of(target):
            continue
        beside = target.with_name(f".{target.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(profile.path, beside)
        os.replace(beside, target)
    return mine, sorted(known.keys() - {chosen})
