"""Ranks for tests, ready in milliseconds.

Starting a Python process that imports PyTorch takes seconds, eight of them longer still. A RankPool
pays that once: a server process imports everything, stays single-threaded, and forks fresh ranks on
demand. In a test:

    def average(count):                      # importable: a rank looks it up by module and name
        rank = int(os.environ["RANK"])
        ...
        return value                         # anything that pickles

    def test_average(rank_pool):
        assert rank_pool.run(average, world_size=4, args=(1000,)) == [...]   # one value per rank

    def test_fault(rank_pool):               # faults: kill ranks, look at every rank's end
        ranks = rank_pool.start(victim, world_size=4)
        ranks.receive(rank=2, timeout=30)    # waits for what rank 2 passes to report()
        os.kill(ranks.pids[2], signal.SIGKILL)
        outcomes = ranks.wait(timeout=30)    # RankOutcome per rank; nothing is raised

A rank is a normal process: own environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, DEVICE_ID,
MASTER_ADDR, MASTER_PORT, a COLLECTIVE_OPS_JOB_ID of its own run), atexit handlers run, output captured.
It differs in two things, which have to be tested with subprocess: imports have happened, and at the end
C++ statics are not destroyed. Random generators of numpy and PyTorch start alike in all ranks.
"""

from __future__ import annotations

import itertools
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rank_server
from rank_server import report

__all__ = ["RankError", "RankOutcome", "RankPool", "RankTimeout", "Ranks", "report"]

# After the first failure in run() the other ranks, which may wait for the failed one, get this long.
GRACE_AFTER_FAILURE_S = 10.0
# After SIGABRT, which makes a rank print where it stands, before SIGKILL.
GRACE_AFTER_ABORT_S = 2.0


@dataclass
class RankOutcome:
    """How one rank ended."""

    rank: int
    value: Any = None
    error: str | None = None  # traceback, where the function raised
    exit_code: int | None = None  # of the process; negative: the signal that ended it
    output: str = ""  # standard output and error

    @property
    def ok(self) -> bool:
        return self.error is None and self.exit_code == 0

    def __str__(self) -> str:
        if self.error is not None:
            text = f"rank {self.rank} raised:\n{self.error.rstrip()}"
        elif self.exit_code is not None and self.exit_code < 0:
            text = f"rank {self.rank} was ended by {signal.Signals(-self.exit_code).name}"
        else:
            text = f"rank {self.rank} left with exit code {self.exit_code}"
        tail = self.output[-4000:].rstrip()
        return f"{text}\n--- output of rank {self.rank}\n{tail}" if tail else text


class RankError(AssertionError):
    """A rank raised, died, or left with a non-zero exit code. `outcomes` holds the failed ones."""

    def __init__(self, outcomes: Sequence[RankOutcome], text: str = "") -> None:
        self.outcomes = list(outcomes)
        super().__init__("\n".join([text, *map(str, outcomes)] if text else map(str, outcomes)))


class RankTimeout(RankError):
    """Ranks did not end in time; they were stopped, and their output shows where they stood."""


class Ranks:
    """One running set of ranks. `pids` is known from the start."""

    def __init__(self, pool: RankPool, world_size: int) -> None:
        self._pool = pool
        self._outcomes = [RankOutcome(rank) for rank in range(world_size)]
        self._messages: list[list[Any]] = [[] for _ in range(world_size)]
        self._buffers = [bytearray() for _ in range(world_size)]
        self._outputs = [tempfile.TemporaryFile() for _ in range(world_size)]
        self._pipes: list[int] = []
        self.pids: list[int] = []

    def receive(self, rank: int, timeout: float = 60) -> Any:
        """The next value that `rank` passed to report(). RankError if it ended first."""
        deadline = time.monotonic() + timeout
        while not self._messages[rank]:
            if self._outcomes[rank].exit_code is not None:
                raise RankError([self._finished(rank)], f"rank {rank} ended without a report")
            if not self._pool._poll(deadline):
                self.abort()
                raise RankTimeout([self._finished(rank)], f"rank {rank} reported nothing in {timeout} s")
        return self._messages[rank].pop(0)

    def output(self, rank: int) -> str:
        """What `rank` has printed up to now."""
        file = self._outputs[rank]
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    def wait(self, timeout: float = 60) -> list[RankOutcome]:
        """Every rank's end. RankTimeout if some run longer; those are stopped."""
        return self._wait(time.monotonic() + timeout, timeout, grace=None)

    def results(self, timeout: float = 60) -> list[Any]:
        """Every rank's value; RankError with all tracebacks where one failed."""
        outcomes = self._wait(time.monotonic() + timeout, timeout, grace=GRACE_AFTER_FAILURE_S)
        failed = [outcome for outcome in outcomes if not outcome.ok]
        if failed:
            # Ranks that were only stopped because of the others say least: last.
            raise RankError(sorted(failed, key=lambda outcome: outcome.error is None))
        return [outcome.value for outcome in outcomes]

    def abort(self) -> None:
        """Stops what still runs; a rank that can prints where each of its threads stands."""
        self._signal_running(signal.SIGABRT)
        deadline = time.monotonic() + GRACE_AFTER_ABORT_S
        while self._running() and self._pool._poll(deadline):
            pass
        self._signal_running(signal.SIGKILL)
        while self._running():
            if not self._pool._poll(time.monotonic() + 60):
                raise RuntimeError(f"ranks {self._running()} do not end after SIGKILL")

    def _wait(self, deadline: float, timeout: float, grace: float | None) -> list[RankOutcome]:
        while self._running():
            if grace is not None and any(self._failed(outcome) for outcome in self._outcomes):
                deadline, grace = min(deadline, time.monotonic() + grace), None
                timeout = 0
            if self._pool._poll(deadline):
                continue
            late = self._running()
            self.abort()
            if timeout:
                text = f"ranks {late} did not end in {timeout} s"
                raise RankTimeout([self._finished(rank) for rank in late], text)
        return [self._finished(rank) for rank in range(len(self._outcomes))]

    @staticmethod
    def _failed(outcome: RankOutcome) -> bool:
        return outcome.error is not None or outcome.exit_code not in (None, 0)

    def _running(self) -> list[int]:
        return [outcome.rank for outcome in self._outcomes if outcome.exit_code is None]

    def _signal_running(self, number: int) -> None:
        for rank in self._running():
            try:
                os.killpg(self.pids[rank], number)
            except ProcessLookupError:
                pass

    def _finished(self, rank: int) -> RankOutcome:
        self._outcomes[rank].output = self.output(rank)
        return self._outcomes[rank]

    def _read(self, rank: int) -> int:
        """Takes what has come through the rank's pipe. Bytes read; 0 at its end, -1 where nothing waits."""
        try:
            data = os.read(self._pipes[rank], 1 << 20)
        except BlockingIOError:
            return -1
        buffer = self._buffers[rank]
        buffer += data
        while (frame := rank_server.take_frame(buffer)) is not None:
            kind, content = frame
            if kind == "report":
                self._messages[rank].append(content)
            elif kind == "value":
                self._outcomes[rank].value = content
            else:
                self._outcomes[rank].error = content
        return len(data)


class RankPool:
    """The server and its ranks. One per test session; close() ends all of them."""

    def __init__(self, with_torch: bool = True) -> None:
        self._control, theirs = socket.socketpair()
        self._buffer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._by_pid: dict[int, tuple[Ranks, int]] = {}
        self._starting: Ranks
        self._log = tempfile.TemporaryFile()
        self._ready: dict[str, Any] | None = None
        self._numbers = itertools.count()
        kind = "torch" if with_torch else "plain"
        command = [sys.executable, rank_server.__file__, str(theirs.fileno()), kind]
        environment = {**os.environ, **rank_server.ONE_THREAD}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DEVICE_ID", "COLLECTIVE_OPS_JOB_ID"):
            environment.pop(name, None)
        self._server = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        theirs.close()

    def run(
        self,
        function: Callable[..., Any] | str,
        world_size: int = 8,
        args: tuple[Any, ...] = (),
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60,
        cwd: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Calls `function(*args)` in `world_size` new processes; the values, rank by rank.

        `function`: a module's function, or "module:function". `env` is laid over this process's
        environment and the rank's own variables; None removes one. Raises RankError, RankTimeout.
        """
        return self.start(function, world_size, args, env, cwd).results(timeout)

    def start(
        self,
        function: Callable[..., Any] | str,
        world_size: int = 8,
        args: tuple[Any, ...] = (),
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Ranks:
        """As run(), but returns as soon as the processes exist."""
        self._wait_until_ready()
        ranks = Ranks(self, world_size)
        pipes = [os.pipe() for _ in range(world_size)]
        request = {
            "environments": self._environments(world_size, env or {}),
            "directory": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "path": list(sys.path),
            "call": pickle.dumps((function, args)),
        }
        descriptors = [write for _, write in pipes] + [file.fileno() for file in ranks._outputs]
        rank_server.send_message(self._control, request, descriptors)
        for rank, (read, write) in enumerate(pipes):
            os.close(write)
            os.set_blocking(read, False)
            ranks._pipes.append(read)
            self._selector.register(read, selectors.EVENT_READ, (ranks, rank))
        self._starting = ranks
        while not ranks.pids:
            if not self._poll(time.monotonic() + 60):
                raise RuntimeError("the rank server does not answer")
        return ranks

    def close(self) -> None:
        """Ends the server, and with it every rank that still runs."""
        self._control.close()
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._selector.close()

    def _environments(self, world_size: int, overrides: Mapping[str, str | None]) -> list[dict[str, str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {**os.environ, **rank_server.ONE_THREAD}
        shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shared["COLLECTIVE_OPS_JOB_ID"] = f"test-{os.getpid()}-{next(self._numbers)}"
        result = []  # the port is free now; only ranks that use PyTorch's own backends listen there
        for rank in range(world_size):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "DEVICE_ID": str(rank), **overrides}
            result.append({name: value for name, value in own.items() if value is not None})
        return result

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 180
        while self._ready is None:
            if not self._poll(deadline):
                raise RuntimeError("the rank server did not become ready")

    def _poll(self, deadline: float) -> bool:
        """Handles what has come from the server and the ranks; False when the deadline has passed."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        for key, _ in self._selector.select(remaining):
            if key.data is None:
                self._read_control()
                continue
            ranks, rank = key.data
            # A pipe may have been closed by an earlier event of this round.
            if ranks._pipes[rank] >= 0 and ranks._read(rank) == 0:
                self._close_pipe(ranks, rank)
        return True

    def _close_pipe(self, ranks: Ranks, rank: int) -> None:
        if ranks._pipes[rank] >= 0:
            self._selector.unregister(ranks._pipes[rank])
            os.close(ranks._pipes[rank])
            ranks._pipes[rank] = -1

    def _read_control(self) -> None:
        data = self._control.recv(1 << 16)
        if not data:
            output = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")
            raise RuntimeError(f"the rank server ended with exit code {self._server.wait()}:\n{output}")
        self._buffer += data
        while (frame := rank_server.take_frame(self._buffer)) is not None:
            kind, content = frame
            if kind == "ready":
                self._ready = content
            elif kind == "started":
                self._starting.pids = content
                self._by_pid.update({pid: (self._starting, rank) for rank, pid in enumerate(content)})
            else:
                self._rank_ended(*content)

    def _rank_ended(self, pid: int, exit_code: int) -> None:
        ranks, rank = self._by_pid.pop(pid)
        # All that it wrote is in the pipe by now. Its end may never come, where a child of the rank holds
        # the other side open.
        while ranks._pipes[rank] >= 0 and ranks._read(rank) > 0:
            pass
        self._close_pipe(ranks, rank)
        ranks._outcomes[rank].exit_code = exit_code
