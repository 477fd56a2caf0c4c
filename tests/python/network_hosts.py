"""Hosts for tests: network namespaces that are joined by a bridge of their own.

    if reason := network_hosts.unsupported():
        pytest.skip(reason)
    with NetworkHosts(2, rate="1gbit") as hosts:
        hosts.addresses          # ["10.77.0.1", "10.77.0.2"]; of family "ipv6" ["fd77::1", "fd77::2"]
        ends = hosts.run_ranks([python, "-c", PROGRAM], ranks_per_host=2, timeout=60)
        ends[3].output           # of rank 3, which is on host 1

Each has an interface eth0, its own host name (host0, host1 ...) and hosts file. Names and files are seen by
its processes alone. Everything ends with this process, however that ends: a namespace lives as long as one
in it, each of which waits for the end of a pipe of ours. Nothing of the machine's own network is touched.
Two hosts here have one boot id and one file system; what tells them apart is the network namespace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HOLD = "echo ready; exec cat"  # ends with the pipe that it reads
UNITS = {"gbit": 10**9, "mbit": 10**6}
TOOLS = ("ip", "tc", "unshare", "nsenter")
GRACE_S = 2.0  # between SIGTERM and SIGKILL of ranks that took too long


class NetworkError(RuntimeError):
    """A command that builds the network failed; the text has its output."""


@functools.cache
def unsupported() -> str:
    """Why hosts cannot be made here; "" where they can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)} here: install iproute2 and util-linux"
    try:
        with NetworkHosts(1):
            return ""
    except (OSError, NetworkError) as error:
        return f"network namespaces are not allowed here: {error}"


@dataclass
class RankEnd:
    """How a rank ended. `output` is what it wrote, errors among it."""

    rank: int
    exit_code: int
    output: str
    timed_out: bool = False


@dataclass
class _Namespace:
    name: str
    process: subprocess.Popen[str]

    def enter(self, *command: str) -> list[str]:
        pid = str(self.process.pid)
        return ["nsenter", f"--net=/proc/{pid}/ns/net", f"--uts=/proc/{pid}/ns/uts",
                f"--mount=/proc/{pid}/ns/mnt", f"--wd={os.getcwd()}", "--", *command]  # fmt: skip


@dataclass
class NetworkHosts:
    """`count` hosts. `family`: ipv4, ipv6 (no IPv4 address at all) or both. `rate`: of each link, as
    tc writes it ("1gbit"), in both directions; None: as fast as the kernel copies. `delay_us`: what a frame
    takes longer, one way (slow_link.py); needs a rate of whole gbit or mbit."""

    count: int
    rate: str | None = None
    delay_us: int = 0
    family: str = "ipv4"
    addresses: list[str] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _hosts: list[_Namespace] = field(default_factory=list)
    _folder: Path = Path()

    def __enter__(self) -> NetworkHosts:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def address(self, host: int, family: str = "") -> str:
        """Of eth0. `family` where hosts have both."""
        numbers = {"ipv4": f"10.77.0.{host + 1}", "ipv6": f"fd77::{host + 1:x}"}
        return numbers[family or ("ipv6" if self.family == "ipv6" else "ipv4")]

    def command(self, host: int, *command: str) -> list[str]:
        """The command that runs `command` on a host."""
        return self._hosts[host].enter(*command)

    def namespace(self, host: int) -> str:
        """The file that stands for its network, for setns()."""
        return f"/proc/{self._hosts[host].process.pid}/ns/net"

    def run(self, host: int, *command: str, timeout: float = 30) -> str:
        """What a command printed on a host; NetworkError where it fails."""
        return _run(self.command(host, *command), timeout)

    def start(
        self,
        host: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdout: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """A process on a host, in a process group of its own; its errors go where its output goes."""
        process = subprocess.Popen(
            self.command(host, *command),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return process

    def write_hosts_file(self, host: int, text: str) -> None:
        """What names mean on this host: lines of "address name"."""
        (self._folder / f"hosts{host}").write_text(text)

    def add_interface(self, host: int, name: str, *addresses: str) -> None:
        """One that leads nowhere; addresses with their prefix ("172.17.0.1/16")."""
        other = f"{name}-end"
        self.run(host, "ip", "link", "add", name, "type", "veth", "peer", "name", other)
        self.run(host, "ip", "link", "set", other, "up")
        for address in addresses:
            self.run(host, "ip", "address", "add", address, "dev", name, *_nodad(address))
        self.run(host, "ip", "link", "set", name, "up")

    def cut(self, one: int, other: int, family: str = "") -> None:
        """From now on these two cannot reach each other; all others can."""
        for here, there in ((one, other), (other, one)):
            self.run(here, "ip", "route", "add", "unreachable", self.address(there, family))

    def set_link(self, host: int, up: bool) -> None:
        self.run(host, "ip", "link", "set", "eth0", "up" if up else "down")

    def rank_environment(
        self, ranks_per_host: int, env: Mapping[str, str] | None = None
    ) -> list[dict[str, str]]:
        """For each rank what torchrun would set (without its store), over this process's environment."""
        world = self.count * ranks_per_host
        return [
            {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank % ranks_per_host),
                "LOCAL_WORLD_SIZE": str(ranks_per_host),
                "MASTER_ADDR": self.address(0),
                "MASTER_PORT": "29500",
                **(env or {}),
            }
            for rank in range(world)
        ]

    def run_ranks(
        self,
        command: Sequence[str],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        timeout: float = 60,
    ) -> list[RankEnd]:
        """Runs `command` as every rank, host by host, and waits for all; those that take longer are ended.
        `env` goes over rank_environment, `env_of` over that of single ranks."""
        started = []
        for rank, variables in enumerate(self.rank_environment(ranks_per_host, env)):
            variables |= (env_of or {}).get(rank, {})
            output = self._stack.enter_context(tempfile.TemporaryFile("w+"))
            started.append((self.start(rank // ranks_per_host, command, variables, output), output))
        return wait_for_ranks(started, timeout)

    def _build(self) -> None:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        bridge = self._namespace("switch")
        if self.delay_us:
            self._start_slow_switch(bridge)
        else:
            _run(bridge.enter("ip", "link", "add", "bridge", "type", "bridge"))
            _run(bridge.enter("ip", "link", "set", "bridge", "up"))
        for number in range(self.count):
            host = self._namespace(f"host{number}")
            self._hosts.append(host)
            self._connect(bridge, host, number)
            self._name(host, number)
        self.addresses = [self.address(number) for number in range(self.count)]

    def _start(self, command: list[str], prefix: str = "") -> subprocess.Popen[str]:
        """A process that says when it is ready, and ends when its standard input does."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._stack.callback(_release, process)
        if process.stdout.readline() != "ready\n":
            process.stdin.close()
            raise NetworkError(prefix + (process.stderr.read().strip() or f"{command[0]} failed"))
        return process

    def _namespace(self, name: str) -> _Namespace:
        return _Namespace(name, self._start(["unshare", "--net", "--uts", "--mount", "sh", "-c", HOLD]))

    def _start_slow_switch(self, bridge: _Namespace) -> None:
        unit = next((unit for unit in UNITS if self.rate and self.rate.endswith(unit)), None)
        if unit is None:
            raise NetworkError(f"a delay needs a rate such as 1gbit or 100mbit, not {self.rate}")
        bits = int(self.rate.removesuffix(unit)) * UNITS[unit]
        program = str(Path(__file__).with_name("slow_link.py"))
        command = [sys.executable, program, str(self.count), str(bits), str(self.delay_us * 1000)]
        self._start(bridge.enter(*command), "slow_link.py: ")

    def _connect(self, bridge: _Namespace, host: _Namespace, number: int) -> None:
        port, pid = f"port{number}", str(host.process.pid)
        if self.delay_us:
            _run(bridge.enter("ip", "link", "set", f"line{number}", "netns", pid, "name", "eth0"))
        else:
            pair = ["type", "veth", "peer", "name", "eth0", "netns", pid]
            _run(bridge.enter("ip", "link", "add", port, *pair))
            _run(bridge.enter("ip", "link", "set", port, "master", "bridge", "up"))
        _run(host.enter("ip", "link", "set", "lo", "up"))
        if self.family != "ipv4":
            address = self.address(number, "ipv6")
            _run(host.enter("ip", "address", "add", f"{address}/64", "dev", "eth0", "nodad"))
        if self.family != "ipv6":
            address = self.address(number, "ipv4")
            _run(host.enter("ip", "address", "add", f"{address}/24", "dev", "eth0"))
        _run(host.enter("ip", "link", "set", "eth0", "up"))
        if self.rate and not self.delay_us:
            limit = ["root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "100ms"]
            _run(host.enter("tc", "qdisc", "add", "dev", "eth0", *limit))
            _run(bridge.enter("tc", "qdisc", "add", "dev", port, *limit))

    def _name(self, host: _Namespace, number: int) -> None:
        _run(host.enter("hostname", host.name))
        file = self._folder / f"hosts{number}"
        loopback = "::1" if self.family == "ipv6" else "127.0.0.1"
        lines = [f"{loopback} localhost"]
        lines += [f"{self.address(other)} host{other}" for other in range(self.count)]
        file.write_text("\n".join(lines) + "\n")
        _run(host.enter("mount", "--bind", str(file), "/etc/hosts"))


def wait_for_ranks(started: list[tuple[subprocess.Popen[str], IO[str]]], timeout: float) -> list[RankEnd]:
    """`started`: each rank's process and the file that its output goes to."""
    deadline = time.monotonic() + timeout
    late = set()
    for rank, (process, _) in enumerate(started):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.add(rank)
    for process, _ in started:
        _end(process)
    ends = []
    for rank, (process, output) in enumerate(started):
        output.seek(0)
        ends.append(RankEnd(rank, process.returncode, output.read(), rank in late))
    return ends


def _nodad(address: str) -> Iterator[str]:
    return iter(["nodad"] if ":" in address else [])


def _run(command: Sequence[str], timeout: float = 30) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _release(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait(10)
    process.stdout.close()
    process.stderr.close()


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process and what it started (its process group)."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()
