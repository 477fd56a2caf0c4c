"""What the machine allows, found by trying, for `collective-ops doctor`."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import _core
from ._finding import FAIL, OK, WARN, Finding

SECTION = "system"
MIB = 1 << 20
# A rank of eight needs about 3 MiB of control memory and what its buffers take.
ENOUGH_MEMORY = 1024 * MIB
LEAST_MEMORY = 64 * MIB
ENOUGH_FILES = 1024  # a rank keeps two descriptors per peer and one per shared segment
LEAST_FILES = 64

_READ_TARGET = """
import ctypes, os, sys
buffer = ctypes.create_string_buffer(b"collective-ops")
print(os.getpid(), ctypes.addressof(buffer), flush=True)
sys.stdin.read()
"""
_READ_PROBE = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
libc.process_vm_readv.argtypes = [ctypes.c_int, ctypes.POINTER(Piece), ctypes.c_ulong,
                                  ctypes.POINTER(Piece), ctypes.c_ulong, ctypes.c_ulong]
pid, address = int(sys.argv[1]), int(sys.argv[2])
seen = ctypes.create_string_buffer(14)
done = libc.process_vm_readv(pid, Piece(ctypes.addressof(seen), 14), 1, Piece(address, 14), 1, 0)
print("read" if done == 14 and seen.raw == b"collective-ops" else os.strerror(ctypes.get_errno()))
"""


def system(environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[Finding]:
    yield cores(environ)
    yield memory()
    yield memory_files()
    yield huge_pages(root)
    yield private_memory(root)
    yield liveness()
    yield meeting()
    yield open_files()
    yield Finding(SECTION, "/dev/shm", OK, "not used, whatever its size")


def cores(environ: Mapping[str, str]) -> Finding:
    usable, allowed, there = _core.usable_cores(), len(os.sched_getaffinity(0)), os.cpu_count() or 1
    value = f"{usable} usable of {there}"
    if allowed < there:
        value += f", affinity allows {allowed}"
    if usable < allowed:
        value += f", the control group's quota allows {usable}"
    ranks = environ.get("LOCAL_WORLD_SIZE", environ.get("WORLD_SIZE", "")).strip()
    if ranks.isdigit() and int(ranks) > usable:
        advice = "ranks take turns; start no more ranks than cores where speed counts"
        return Finding(SECTION, "cores", WARN, f"{value}, for {ranks} ranks", advice)
    return Finding(SECTION, "cores", OK, value)


def memory() -> Finding:
    """The tightest of all limits that bind shared memory, as the core sees them."""
    limits = _core.memory_limits()
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        advice = "shared memory counts as a file; raise it: ulimit -f unlimited"
        limits.append({"name": "RLIMIT_FSIZE", "limit": soft, "used": 0, "advice": advice})
    if not limits:
        return Finding(SECTION, "memory", WARN, "unknown", "is /proc mounted?", varies=True)
    tightest = min(limits, key=lambda limit: limit["limit"] - limit["used"])
    free = max(0, tightest["limit"] - tightest["used"])
    value = f"{free / MIB:.0f} MiB left, by {tightest['name']} of {tightest['limit'] / MIB:.0f} MiB"
    level = FAIL if free < LEAST_MEMORY else WARN if free < ENOUGH_MEMORY else OK
    return Finding(SECTION, "memory", level, value, tightest["advice"] if level != OK else "", varies=True)


def memory_files() -> Finding:
    """Whether processes can make the sealed memory files that ranks share."""
    try:
        file = os.memfd_create("collective-ops-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, mmap.PAGESIZE)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            with mmap.mmap(file, mmap.PAGESIZE) as pages:
                pages[0] = 1
        finally:
            os.close(file)
    except OSError as error:
        advice = "ranks cannot share memory; does a sandbox (seccomp, gVisor) forbid memfd_create?"
        return Finding(SECTION, "memfd", FAIL, f"refused: {error.strerror}", advice)
    return Finding(SECTION, "memfd", OK, "works")


def huge_pages(root: Path = Path("/")) -> Finding:
    """Whether shared memory gets huge pages, by taking some as a rank does."""
    setting = "unknown"
    try:
        text = (root / "sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text()
        setting = next((word[1:-1] for word in text.split() if word.startswith("[")), "unknown")
    except OSError:
        pass
    advice = "large buffers move up to half as fast; Linux 6.1 or newer, or shmem_enabled=advise"
    try:
        array = _core.SharedArray([8 * MIB], "uint8")
        taken = _mapped_huge_kib()
        del array
    except RuntimeError as error:
        return Finding(SECTION, "huge pages", WARN, f"not tried: {error}", "see memory above")
    if taken == 0:
        return Finding(
            SECTION, "huge pages", WARN, f"none for shared memory (shmem_enabled={setting})", advice
        )
    return Finding(SECTION, "huge pages", OK, f"taken for shared memory (shmem_enabled={setting})")


def _mapped_huge_kib() -> int:
    """KiB of this process's shared memory that huge pages hold."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        head = line.split(":", 1)[0]
        if "-" in head and " " in line and not head[:1].isupper():
            ours = "/memfd:collective-ops" in line
        elif ours and head == "ShmemPmdMapped":
            total += int(line.split()[1])
    return total


def private_memory(root: Path = Path("/"), timeout: float = 30) -> Finding:
    """Whether one process may read another's memory, both started by one parent as ranks are."""
    name = "process_vm_readv"
    try:
        scope = (
            f" (kernel.yama.ptrace_scope={(root / 'proc/sys/kernel/yama/ptrace_scope').read_text().strip()})"
        )
    except OSError:
        scope = ""
    seen = _try_reading(timeout)
    if seen == "read":
        return Finding(SECTION, name, OK, f"works{scope}")
    advice = (
        "private buffers take the staged path, which is slower: set kernel.yama.ptrace_scope=0, or in a "
        "container --cap-add SYS_PTRACE; gradients of GradientBucket(parameters=...) need neither"
    )
    return Finding(SECTION, name, WARN, f"refused: {seen}{scope}", advice)


def _try_reading(timeout: float) -> str:
    target = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _READ_TARGET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        place = target.stdout.readline().split()
        if len(place) != 2:
            return "the probe could not be started"
        command = [sys.executable, "-I", "-S", "-c", _READ_PROBE, *place]
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        return run.stdout.strip() or f"the probe ended with exit code {run.returncode}"
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    finally:
        target.kill()
        target.communicate()


def liveness() -> Finding:
    """Whether a peer's death can be watched by a descriptor."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        advice = "a dead rank is found by polling /proc instead; Linux 5.3 or newer has it"
        return Finding(SECTION, "pidfd", WARN, f"refused: {error}", advice)
    return Finding(SECTION, "pidfd", OK, "works")


def meeting() -> Finding:
    """Whether ranks can meet at an abstract socket and see who called."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
            host.bind(f"\0collective-ops-doctor-{os.getpid()}")
            host.listen(1)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
                guest.connect(host.getsockname())
                size = ctypes.sizeof(ctypes.c_int) * 3
                guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError as error:
        advice = "ranks cannot find each other; does a sandbox forbid Unix sockets?"
        return Finding(SECTION, "sockets", FAIL, f"refused: {error.strerror}", advice)
    return Finding(SECTION, "sockets", OK, "work; no address and no port is needed")


def open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    few = soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES
    level = FAIL if few and soft < LEAST_FILES else WARN if few else OK
    return Finding(SECTION, "open files", level, value, "raise it: ulimit -n 4096" if few else "")
