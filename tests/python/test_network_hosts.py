"""The hosts that other tests run on: they reach each other, and nothing of them stays."""

from __future__ import annotations

import os
import sys

import network_hosts
import pytest
from network_hosts import NetworkHosts

if reason := network_hosts.unsupported():
    pytest.skip(reason, allow_module_level=True)

PROGRAM = """
import os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], 4711)
if rank == 0:
    server = socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    names = sorted(server.accept()[0].makefile().readline().strip() for _ in range(world - 1))
    print(socket.gethostname(), *names)
else:
    for attempt in range(200):
        try:
            connection = socket.create_connection(address, timeout=5)
            break
        except ConnectionRefusedError:
            __import__("time").sleep(0.02)
    connection.sendall(f"{rank}@{socket.gethostname()}\\n".encode())
    print(socket.getaddrinfo("host0", 1)[0][4][0])
"""


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_ranks_of_several_hosts_reach_each_other(family: str) -> None:
    with NetworkHosts(3, family=family) as hosts:
        ends = hosts.run_ranks([sys.executable, "-c", PROGRAM], ranks_per_host=2, timeout=30)
        assert [end.exit_code for end in ends] == [0] * 6, ends
        assert ends[0].output.split() == ["host0", "1@host0", "2@host1", "3@host1", "4@host2", "5@host2"]
        assert ends[5].output.strip() == hosts.address(0)


def test_hosts_are_apart_and_leave_nothing() -> None:
    here = os.stat("/proc/self/ns/net").st_ino
    with NetworkHosts(2, rate="100mbit") as hosts:
        found = {int(hosts.run(host, "stat", "-L", "-c", "%i", "/proc/self/ns/net")) for host in range(2)}
        assert len(found | {here}) == 3
        assert "tbf" in hosts.run(1, "tc", "qdisc", "show", "dev", "eth0")
        processes = [hosts.start(0, ["sleep", "1000"])]
    assert all(process.poll() is not None for process in processes)
    assert "host0" not in os.uname().nodename


def test_hosts_can_be_cut_from_each_other() -> None:
    connect = "import socket; socket.create_connection(('10.77.0.{}', 9), timeout=5)"
    with NetworkHosts(3) as hosts:
        hosts.cut(0, 1)
        with pytest.raises(network_hosts.NetworkError, match="No route to host"):
            hosts.run(0, sys.executable, "-c", connect.format(2))
        with pytest.raises(network_hosts.NetworkError, match="refused"):
            hosts.run(0, sys.executable, "-c", connect.format(3))


def test_slow_links() -> None:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun")
    answer = """
import socket, time
begin = time.monotonic()
try:
    socket.create_connection(("10.77.0.2", 9), timeout=5)
except ConnectionRefusedError:
    print(time.monotonic() - begin)
"""
    with NetworkHosts(2, rate="100mbit", delay_us=20_000) as hosts:
        # There and back, in which nothing can be faster.
        assert float(hosts.run(0, sys.executable, "-c", answer)) >= 0.04
        ends = hosts.run_ranks([sys.executable, "-c", PROGRAM], ranks_per_host=1, timeout=30)
        assert ends[0].output.split() == ["host0", "1@host1"]
    with pytest.raises(network_hosts.NetworkError, match="a delay needs a rate"), NetworkHosts(2, delay_us=1):
        pass


def test_late_ranks_are_ended() -> None:
    with NetworkHosts(1) as hosts:
        ends = hosts.run_ranks(["sh", "-c", "echo here; exec sleep 1000"], timeout=1)
        assert ends[0].timed_out and ends[0].output == "here\n"
