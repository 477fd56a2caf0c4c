"""A group of rank processes that take orders over Unix sockets, and sleep while another group is measured.

The orders are described in peers/rank_channel.h. Every order has a deadline; `close` leaves no process
behind: ranks say their process id when they come, and are killed by it, whatever launcher stands between.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO

# Of one order. The ranks' own alarm (rank_channel.h) is longer, for the case that this process is gone.
ORDER_SECONDS = 240.0
START_SECONDS = 60.0


class GroupError(RuntimeError):
    """A group did not start, answered with an error, or did not answer in time.

    `fatal`: it takes no more orders.
    """

    def __init__(self, text: str, fatal: bool = True) -> None:
        super().__init__(text)
        self.fatal = fatal


class Connection:
    """One rank's socket, read line by line."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._rest = b""

    def send(self, line: str) -> None:
        self.channel.sendall(line.encode() + b"\n")

    def line(self, deadline: float) -> str:
        while b"\n" not in self._rest:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self.channel], [], [], remaining)[0]:
                raise GroupError("no answer in time")
            got = self.channel.recv(4096)
            if not got:
                raise GroupError("a rank ended")
            self._rest += got
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace")


class RankGroup:
    """`ranks` processes under one launcher command.

    Args:
        commands: makes, from the socket's path, the commands to start; together they are `ranks` processes
            that say hello.
        environment: added to this process's.
    """

    def __init__(
        self,
        name: str,
        ranks: int,
        commands: Callable[[str], list[list[str]]],
        environment: dict[str, str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.name, self.ranks = name, ranks
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._output: IO[bytes] = tempfile.TemporaryFile()
        try:
            self._start(commands, environment or {}, start_seconds)
        except BaseException:
            self.close()
            raise

    def _start(
        self, commands: Callable[[str], list[list[str]]], environment: dict[str, str], seconds: float
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="ranks") as folder, socket.socket(socket.AF_UNIX) as listener:
            path = os.path.join(folder, "socket")
            listener.bind(path)
            listener.listen(self.ranks)
            for command in commands(path):
                self._launchers.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=self._output,
                        start_new_session=True,
                    )
                )
            deadline = time.monotonic() + seconds
            arrived: dict[int, Connection] = {}
            while len(arrived) < self.ranks:
                if not select.select([listener], [], [], 0.05)[0]:
                    self._look_after_start(deadline, len(arrived))
                    continue
                connection = Connection(listener.accept()[0])
                self._connections.append(connection)
                _, rank, pid = connection.line(deadline).split()
                self._pids.append(int(pid))
                arrived[int(rank)] = connection
            self._connections = [arrived[rank] for rank in sorted(arrived)]

    def _look_after_start(self, deadline: float, arrived: int) -> None:
        ended = [launcher for launcher in self._launchers if launcher.poll() not in (None, 0)]
        if ended or time.monotonic() > deadline:
            what = f"ended with {ended[0].returncode}" if ended else "did not start in time"
            raise GroupError(f"{self.name} {what} ({arrived} of {self.ranks} ranks came){self.output()}")

    def output(self, lines: int = 6) -> str:
        """The end of what its processes wrote, to follow a message."""
        self._output.seek(0)
        text = self._output.read().decode(errors="replace").strip()
        return "".join(f"\n    {line}" for line in text.splitlines()[-lines:])

    def order(self, line: str, seconds: float = ORDER_SECONDS) -> float:
        """Has every rank do `line`; the largest number that they answer. Raises GroupError."""
        deadline = time.monotonic() + seconds
        try:
            for connection in self._connections:
                connection.send(line)
            answers = [connection.line(deadline) for connection in self._connections]
        except (GroupError, OSError) as error:
            raise GroupError(f"{self.name}: {line!r}: {error}{self.output()}") from None
        wrong = [(rank, answer) for rank, answer in enumerate(answers) if not answer.startswith("ok")]
        if wrong:
            rank, answer = wrong[0]
            text = f"{self.name}: {line!r}: rank {rank}: {answer.removeprefix('error ')}"
            raise GroupError(text, fatal=False)
        return max(float((answer.split() + ["0"])[1]) for answer in answers)

    def pids(self) -> list[int]:
        """Of the ranks, in the order they came."""
        return list(self._pids)

    def close(self, seconds: float = 5.0) -> None:
        """Lets the ranks leave, and kills what has not left after `seconds`."""
        for connection in self._connections:
            connection.channel.close()
        self._connections = []
        deadline = time.monotonic() + seconds
        for launcher in self._launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, deadline - time.monotonic()))
        if any(launcher.poll() is None for launcher in self._launchers):
            self.kill()
        self._launchers = []
        self._output.close()

    def kill(self) -> None:
        """Ends launchers and ranks at once."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for launcher in self._launchers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
