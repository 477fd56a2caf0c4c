"""Merging the ranks' trace files into `comm_trace.json`. The C++ core reads and writes; docs/formats.md
describes both formats."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger("collective_ops.trace")


@dataclass(frozen=True)
class MergeSummary:
    """What a merge found. `text` says it in sentences; `complete` is false where a rank is missing,
    damaged, still recording, or had no room for all of its calls (its files are kept then)."""

    output: Path
    job: str
    world_size: int
    calls: int
    complete: bool
    missing_ranks: tuple[int, ...]
    other_jobs: tuple[str, ...]
    text: str


def trace_directory() -> Path:
    """COLLECTIVE_OPS_TRACE_DIR, or the working directory."""
    return Path(os.environ.get("COLLECTIVE_OPS_TRACE_DIR") or ".")


def job_hash(job_id: str) -> str:
    """The 16 hex digits that stand for a job in the names of its files (FNV-1a, 64 bits)."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(job_id):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def merge(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    job: str = "",
    keep: bool = False,
) -> MergeSummary:
    """Merges the files of one job that lie in the directory `source` into `output`.

    Args:
        output: default `comm_trace.json` in `source`.
        job: id of the job, or the hash in its files' names; default: the job that started last.
        keep: leave the ranks' files, which otherwise go once all ranks were merged without a loss.

    Raises:
        ValueError: nothing to merge there, or no such job.
        OSError: the directory cannot be read, or the output not written; no file is removed then.
    """
    from collective_ops import _core

    target = Path(output) if output is not None else Path(source) / "comm_trace.json"
    try:
        found = _core.merge_trace([os.fspath(source)], os.fspath(target), job, keep)
    except (OSError, ValueError) as error:
        raise _explained(error, Path(source), target) from None
    summary = MergeSummary(
        output=target,
        job=found["job"],
        world_size=found["world_size"],
        calls=found["calls"],
        complete=found["complete"],
        missing_ranks=tuple(found["missing_ranks"]),
        other_jobs=tuple(found["other_jobs"]),
        text=found["text"],
    )
    if not summary.complete or summary.other_jobs:
        _log.warning("%s", summary.text.rstrip())
    return summary


def _explained(error: Exception, source: Path, target: Path) -> Exception:
    """The usual reasons for which there is nothing to merge."""
    if not source.exists():
        return ValueError(f"there is no directory {source}")
    if target.is_file() and not any(source.glob("comm_trace.*.rank*.bin")):
        return ValueError(f"{target} is made already; no raw files of ranks are left in {source}")
    return error


def merge_job(job_id: str, directory: str | os.PathLike[str] | None = None) -> Path | None:
    """Merges what the ranks of one job left in the trace directory; None where they left nothing, because
    the last rank out has merged it or none recorded. Raises as `merge` does."""
    folder = Path(directory) if directory is not None else trace_directory()
    if not any(folder.glob(f"comm_trace.{job_hash(job_id)}.rank*.bin")):
        return None
    return merge(folder, job=job_id).output
