"""What `collective_ops.analyze` is given, made ready for the native readers: archives are unpacked and
pickles of PyTorch's flight recorder become JSON, both in a directory that is removed afterwards."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_WANTED = (".json", ".gz", ".csv", ".db", ".pkl", ".pickle")  # of an archive
# PyTorch writes them to a path that ends in the rank, without a suffix: /tmp/nccl_trace_rank_0.
_DUMP = re.compile(r"(\.pickle|\.pkl|(trace|rank|dump)[^.]*_\d+)$")
_RESULTS = "cluster_analysis_output"


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, texts, lists and dictionaries. A pickle that asks for anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which could run code")


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(_ARCHIVES)


def _stem(path: Path) -> str:
    """Without the suffixes of archives, so that a rank in the name is found."""
    name = path.name
    for suffix in sorted(_ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


class PreparedInputs:
    """`paths` for the native reader: pairs of a path and how results name it ("": as it is)."""

    def __init__(self, given: Iterable[Path]) -> None:
        self.paths: list[tuple[bytes, bytes]] = []
        self.problems: list[tuple[Path, str]] = []
        self._folder: Path | None = None
        self._count = 0
        try:
            for path in given:
                self._add(path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PreparedInputs:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _add(self, path: Path) -> None:
        if path.is_dir():
            self._take(path)
            for found in sorted(self._beside(path)):
                self._convert(found)
        elif not path.is_file() or not self._convert(path):
            self._take(path)  # where there is nothing, the native reader says so

    def _take(self, path: Path, shown: Path | None = None) -> None:
        self.paths.append((os.fsencode(path), os.fsencode(shown) if shown is not None else b""))

    def _convert(self, path: Path) -> bool:
        """Whether it is an archive or a dump; what cannot be read is told."""
        try:
            if _is_archive(path):
                place = self._place(_stem(path))
                place.mkdir()
                try:
                    self._unpack_all(path, place)
                finally:
                    self._take(place, path)  # what came out of a damaged one is used
                return True
            if _DUMP.search(path.name):
                dump = self._dump(path)
                if dump is not None:
                    self._take(dump, path)
                return dump is not None
        except Exception as error:  # the modules that read them raise anything on damaged bytes
            self.problems.append((path, f"cannot be read: {error or type(error).__name__}"))
            return True
        return False

    @staticmethod
    def _beside(directory: Path) -> Iterator[Path]:
        for folder, folders, files in os.walk(directory):
            folders[:] = [name for name in folders if name != _RESULTS]
            for name in files:
                if name.lower().endswith(_ARCHIVES) or _DUMP.search(name):
                    yield Path(folder, name)

    def _place(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="collective_ops_analysis_"))
        self._count += 1
        place = self._folder / str(self._count) / name
        place.parent.mkdir()
        return place

    def _unpack_all(self, archive: Path, place: Path) -> None:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                infos = (info for info in packed.infolist() if not info.is_dir())
                self._unpack(place, ((info.filename, info.file_size, info) for info in infos), packed.open)
        else:
            with tarfile.open(archive) as packed:
                members = ((info.name, info.size, info) for info in packed if info.isfile())
                self._unpack(place, members, lambda info: packed.extractfile(info) or io.BytesIO())

    @staticmethod
    def _unpack(place: Path, files: Iterable[tuple[str, int, Any]], open_file: Any) -> None:
        """Only plain files of known kinds, never outside of `place`, as long as the disk has room."""
        damage = ""
        for name, size, info in files:
            parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
            if not parts or ".." in parts:
                continue
            if not parts[-1].lower().endswith(_WANTED) and not _DUMP.search(parts[-1]):
                continue
            free = shutil.disk_usage(place).free
            if size > free * 0.9:
                raise OSError(
                    f"{name} takes {size / 1e9:.1f} GB, {tempfile.gettempdir()} has {free / 1e9:.1f}; "
                    "set TMPDIR to a larger disk"
                )
            target = place.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open_file(info) as source, target.open("wb") as copy:
                    _copy(source, copy, size)
            except Exception as error:  # this file is cut off there; the next ones may be whole
                damage = damage or f"{name}: {error or type(error).__name__}"
        if damage:
            raise ValueError(damage)

    def _dump(self, path: Path) -> Path | None:
        """JSON of a dump of the flight recorder; None for what is none."""
        with path.open("rb") as file:
            first = file.read(1)
            if first == b"{":
                return path
            if first != b"\x80":
                return None
            file.seek(0)
            content = _PlainUnpickler(file).load()
        if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
            return None
        entries = [{k: v for k, v in entry.items() if k != "frames"} for entry in content["entries"]]
        target = self._place(f"rank{_trailing_number(path)}.json")
        target.write_text(
            json.dumps({"pg_config": content.get("pg_config", {}), "entries": entries}, default=str)
        )
        return target


def _trailing_number(path: Path) -> str:
    number = re.search(r"(\d+)\D*$", path.name)
    return number.group(1) if number else ""


def _copy(source: BinaryIO, target: BinaryIO, most: int) -> None:
    """An archive may lie about a size; more is not taken."""
    while most > 0 and (piece := source.read(min(most, 1 << 20))):
        target.write(piece)
        most -= len(piece)
