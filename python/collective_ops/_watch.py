"""What the launcher sees of its ranks while they run: who ended when and how, and what they print."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TRACEBACK = b"Traceback (most recent call last):"
# Texts by which a rank says that it failed because another one did: never the first cause.
_CONSEQUENCE = re.compile(
    rb"peer_lost|group_broken|PeerLost|GroupBroken|Connection closed by peer|Connection reset by peer"
)
_TAIL_BYTES = 256 * 1024
_TAIL_LINES = 30


@dataclass
class RankState:
    """exit_code: as subprocess has it, negative for a signal; None while unknown. ended: monotonic time."""

    pid: int
    ended: float | None = None
    exit_code: int | None = None


class RankWatcher(threading.Thread):
    """Learns of a rank's end within a millisecond (pidfd), so that ranks can be put in the order in which
    they ended: the agent looks a few times a second, and a failing rank takes all others with it sooner."""

    def __init__(self, state_directory: Path, kill_after: float) -> None:
        super().__init__(name="rank watcher", daemon=True)
        self.ranks: dict[int, RankState] = {}
        self.failed = threading.Event()
        self._kill_after = kill_after
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(str(state_directory / "launcher"))
        self._stop_read, self._stop_write = os.pipe()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        rank_of: dict[int, int] = {}  # by pidfd
        kill_at: float | None = None
        while True:
            timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
            ready = [descriptor for descriptor, _ in poll.poll(timeout)]
            for descriptor in ready:
                if descriptor == self._channel.fileno():
                    self._register(poll, rank_of)
                elif descriptor in rank_of:
                    poll.unregister(descriptor)
                    self._ended(rank_of.pop(descriptor))
                    os.close(descriptor)
            if self.failed.is_set() and kill_at is None:
                kill_at = time.monotonic() + self._kill_after
            if kill_at is not None and time.monotonic() >= kill_at:
                self.kill()
                kill_at = time.monotonic() + self._kill_after
            if self._stop_read in ready:
                break
        for descriptor in rank_of:
            os.close(descriptor)

    def _register(self, poll: select.poll, rank_of: dict[int, int]) -> None:
        rank, pid = (int(word) for word in self._channel.recv(64).split())
        self.ranks[rank] = RankState(pid)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._ended(rank)
            return
        rank_of[descriptor] = rank
        poll.register(descriptor, select.POLLIN)

    def _ended(self, rank: int) -> None:
        state = self.ranks[rank]
        state.ended = time.monotonic()
        # WNOWAIT leaves the child to the launcher proper; where that was faster, it reports the code later.
        with contextlib.suppress(ChildProcessError):
            result = os.waitid(os.P_PID, state.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                state.exit_code = result.si_status if exited else -result.si_status
        if state.exit_code:
            self.failed.set()

    def kill(self) -> None:
        """Ends what is left of the ranks and of what they have started (each rank leads a process group)."""
        for state in list(self.ranks.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(state.pid, signal.SIGKILL)

    def stop(self) -> None:
        os.write(self._stop_write, b"x")
        self.join()
        self._channel.close()
        os.close(self._stop_read)
        os.close(self._stop_write)


def first_failure(ranks: dict[int, RankState], logs: dict[int, Path]) -> int | None:
    """The rank whose failure came first, or None where none failed.

    A rank that only reports another one's death is passed over where any other failed; of the rest, and
    where all are alike, the one that ended first counts.
    """
    failed = [rank for rank, state in ranks.items() if state.exit_code]
    if not failed:
        return None

    earliest = min(_end_of(ranks[rank]) for rank in failed)

    def order(rank: int) -> tuple[bool, bool, float]:
        ended = _end_of(ranks[rank])
        stopped_by_us = ranks[rank].exit_code in (-signal.SIGTERM, -signal.SIGKILL) and ended > earliest
        return stopped_by_us, _CONSEQUENCE.search(last_lines(logs[rank])) is not None, ended

    return min(failed, key=order)


def _end_of(state: RankState) -> float:
    return float("inf") if state.ended is None else state.ended


def last_lines(log: Path) -> bytes:
    """The last traceback of a log and what follows it, else its last lines."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return b""
    lines = tail.rstrip(b"\n").split(b"\n")
    # The first of a chain of tracebacks ("During handling of ...") is where the trouble began.
    starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
    if not starts:
        return b"\n".join(line.rsplit(b"\r", 1)[-1] for line in lines[-_TAIL_LINES:])
    begin = starts[-1]
    for earlier, later in zip(reversed(starts[:-1]), reversed(starts[1:]), strict=True):
        between = b"\n".join(lines[earlier:later])
        if b"During handling of the above exception" not in between and b"direct cause of" not in between:
            break
        begin = earlier
    return b"\n".join(lines[begin:])


class LiveOutput(threading.Thread):
    """Copies what some ranks print to the terminal while they run.

    A traceback is held back for a while, longer where it speaks of another rank: where a failure follows, it
    is dropped, since the launcher then shows the first failing rank's error alone (the logs keep everything).
    """

    PERIOD = 0.05
    HOLD = 10.0
    HOLD_CONSEQUENCE = 60.0  # a process may take long to end, with many of them on few cores

    def __init__(self, logs: dict[int, Path], failed: threading.Event) -> None:
        super().__init__(name="live output", daemon=True)
        self._followers = [
            _Follower(path, f"[rank {rank}] " if len(logs) > 1 else "") for rank, path in sorted(logs.items())
        ]
        self._failed = failed
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(self.PERIOD):
            failed = self._failed.is_set()  # asked before the copy, which then takes all that it left
            self._copy(final=False)
            if failed:
                return
        self._copy(final=not self._failed.is_set())

    def _copy(self, *, final: bool) -> None:
        for follower in self._followers:
            data = follower.read(time.monotonic(), final=final)
            if data:
                with contextlib.suppress(BrokenPipeError, ValueError):
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()

    def stop(self, *, drop_held: bool) -> None:
        if drop_held:
            self._failed.set()
        self._stopping.set()
        self.join()


class _Follower:
    """One log. With a prefix, whole lines only; without, bytes as they come, so progress bars work."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix = path, prefix.encode()
        self._file = None
        self._held = b""
        self._held_since: float | None = None
        self._line_start = True

    def read(self, now: float, *, final: bool) -> bytes:
        if self._file is None:
            try:
                self._file = open(self._path, "rb")  # noqa: SIM115 - stays open while the rank runs
            except OSError:
                return b""
        self._held += self._file.read()
        if not self._held:
            return b""
        cut = len(self._held) if final else self._releasable(now)
        data, self._held = self._held[:cut], self._held[cut:]
        if data:
            self._line_start = data.endswith((b"\n", b"\r"))
        return self._prefixed(data)

    def _releasable(self, now: float) -> int:
        """How many of the held bytes may be shown now."""
        begin = (
            0
            if self._line_start and self._held.startswith(TRACEBACK)
            else self._held.find(b"\n" + TRACEBACK) + 1
        )
        has_traceback = begin > 0 or (self._line_start and self._held.startswith(TRACEBACK))
        if has_traceback:
            self._held_since = self._held_since or now
            speaks_of_others = _CONSEQUENCE.search(self._held) or b"collective_ops.errors." in self._held
            hold = LiveOutput.HOLD_CONSEQUENCE if speaks_of_others else LiveOutput.HOLD
            if now - self._held_since < hold:
                return begin
        self._held_since = None
        if self._prefix:
            return self._held.rfind(b"\n") + 1
        last_line = self._held.rfind(b"\n") + 1
        partial = self._held[last_line:]
        may_become_one = partial and TRACEBACK.startswith(partial) and (last_line > 0 or self._line_start)
        return last_line if may_become_one else len(self._held)

    def _prefixed(self, data: bytes) -> bytes:
        if not self._prefix or not data:
            return data
        lines = data.rstrip(b"\n").split(b"\n")
        return b"".join(self._prefix + line.rsplit(b"\r", 1)[-1] + b"\n" for line in lines)
