"""Where a rank's profile lies, and which run it belongs to. Every directory of ours carries its run's id, so
that profiles of two runs are told apart, reported, and removed only where they are ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIX = "_ascend_pt"
MARK = "collective_ops"  # the key of profiler_info that only our directories have
OUTPUT = "ASCEND_PROFILER_OUTPUT"
RAW = "FRAMEWORK"


@dataclass(frozen=True)
class Found:
    """A profile of ours that lies somewhere below a save path."""

    path: Path
    run: str
    rank: int
    started: str


def write_whole(path: Path, data: str | bytes) -> None:
    """Beside it first, then under its name: nobody reads half a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data.encode() if isinstance(data, str) else data)
    os.replace(beside, path)


def directory_name(worker: str = "") -> str:
    """`<host>_<pid>_<time>_ascend_pt`, time in UTC to the millisecond."""
    worker = re.sub(r"[^\w.\-]", "_", worker) or f"{socket.gethostname()}_{os.getpid()}"
    now = time.time_ns()
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(now // 10**9))
    return f"{worker}_{stamp}{now // 10**6 % 1000:03d}{SUFFIX}"


def find_profiles(root: Path, depth: int = 5) -> list[Found]:
    """All of ours below `root`; a symlink is not followed, what cannot be read is passed over."""
    found: list[Found] = []
    level = [root]
    for _ in range(depth + 1):
        below: list[Path] = []
        for folder in level:
            for path in _folders(folder):
                profile = _ours(path)
                if profile is not None:
                    found.append(profile)
                elif not path.name.endswith(SUFFIX):
                    below.append(path)
        level = below
    return sorted(found, key=lambda profile: (profile.rank, str(profile.path)))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def info_of(directory: Path) -> dict[str, Any]:
    """What profiler_info*.json says; {} where there is none that can be read."""
    try:
        files = sorted(directory.glob("profiler_info*.json"))
        content = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _ours(directory: Path) -> Found | None:
    content = info_of(directory)
    mark = content.get(MARK)
    if not isinstance(mark, dict) or "run" not in mark:
        return None
    rank = content.get("rank_id", -1)
    return Found(
        directory, str(mark["run"]), rank if isinstance(rank, int) else -1, str(mark.get("started", ""))
    )


def remove_other_runs(root: Path, run: str, mine: Callable[[int], bool]) -> list[Path]:
    """Removes our profiles of other runs, of the ranks that are `mine` to remove: no two ranks of a run
    remove one. Returns what was removed. Raises OSError."""
    removed = []
    for profile in find_profiles(root):
        if profile.run != run and mine(profile.rank):
            shutil.rmtree(profile.path)
            removed.append(profile.path)
            for folder in (profile.path.parent, profile.path.parent.parent):
                if folder != root and root in folder.parents:
                    with contextlib.suppress(OSError):  # something else lies in it
                        folder.rmdir()
    return removed


def run_id(recorder_run: str) -> str:
    """Equal on all ranks of one start of a job, and of no other: from PyTorch's store, else from the
    recorder, else from the launcher. No rank waits for another here."""
    shared = _from_store() or recorder_run
    if shared:
        return shared
    names = ("COLLECTIVE_OPS_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR")
    known = [os.environ.get(name, "") for name in (*names, "MASTER_PORT")]
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        known += [str(os.getpid()), str(time.time_ns())]
    else:
        known += [str(os.getppid()), _start_time(os.getppid())]
    return hashlib.sha256("\0".join(known).encode()).hexdigest()[:16]


def _from_store() -> str:
    try:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return ""
        store = dist.distributed_c10d._get_default_store()
        own = os.urandom(8).hex()
        # The first rank's id stands; an absent key takes "" as what was expected.
        return store.compare_set("collective_ops/profile_run", "", own).decode()
    except Exception:  # noqa: BLE001 - stores that cannot compare: the launcher tells the run
        return ""


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""
