"""Ranks on several hosts find each other: by every launcher's variables, rank tables, root info and stores;
and what is wrong with a network is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import network_hosts
import pytest
from network_hosts import NetworkHosts, RankEnd

if reason := network_hosts.unsupported():
    pytest.skip(reason, allow_module_level=True)

SECRET = {"COLLECTIVE_OPS_SECRET": "what only these ranks know"}
# Every rank connects to every other one, and says what came of all.
PROGRAM = """
import os, sys, array
import collective_ops
try:
    collective_ops.init_hccl(**eval(os.environ.get("ARGUMENTS", "{}")))
    size = collective_ops.world_size()
    out = array.array("i", [0] * size)
    collective_ops.alltoall(out, array.array("i", [collective_ops.rank() + 1] * size))
    print("sum", sum(out), "of", size)
except collective_ops.CollectiveError as error:
    print(type(error).__name__, error)
    sys.exit(3)
"""
RANK = [sys.executable, "-c", PROGRAM]
CLEARED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(scope="module")
def pair() -> Iterator[NetworkHosts]:
    """Two hosts whose network stays as it is."""
    with NetworkHosts(2, family="both") as hosts:
        yield hosts


def sum_of(count: int) -> str:
    return f"sum {count * (count + 1) // 2} of {count}\n"


def joined(ends: list[RankEnd]) -> None:
    assert [end.output for end in ends] == [sum_of(len(ends))] * len(ends)


def refused(end: RankEnd, *texts: str) -> None:
    assert end.exit_code == 3 and not end.timed_out, end
    for text in texts:
        assert re.search(text, end.output), end.output


def run(hosts: NetworkHosts, each: list[dict[str, str]], ranks_per_host: int = 1) -> list[RankEnd]:
    """Ranks that get these variables and none of torchrun's."""
    nothing = dict.fromkeys(CLEARED, "")
    env_of = {rank: nothing | variables for rank, variables in enumerate(each)}
    return hosts.run_ranks(RANK, ranks_per_host, SECRET, env_of)


def hold_ports(hosts: NetworkHosts, *ports: int) -> subprocess.Popen[str]:
    """Another program on host 0 that listens there."""
    program = f"""
import socket, time
held = [socket.create_server(("", port)) for port in {ports}]
print("up", flush=True)
time.sleep(60)
"""
    holder = hosts.start(0, [sys.executable, "-c", program])
    assert holder.stdout.readline() == "up\n"
    return holder


def test_torchrun(pair: NetworkHosts) -> None:
    joined(pair.run_ranks(RANK, ranks_per_host=2, env=SECRET | {"TORCHELASTIC_RUN_ID": "none"}))


def test_torchrun_where_its_store_holds_the_port(pair: NetworkHosts) -> None:
    holder = hold_ports(pair, 29500)
    joined(pair.run_ranks(RANK, ranks_per_host=2, env=SECRET))
    holder.kill()


def test_open_mpi(pair: NetworkHosts) -> None:
    each = [
        {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "MASTER_ADDR": "host0",
        }
        for rank in range(4)
    ]
    joined(run(pair, each, ranks_per_host=2))


def test_mpich(pair: NetworkHosts) -> None:
    address = pair.address(0, "ipv4")
    each = [
        {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": address}
        for rank in range(2)
    ]
    joined(run(pair, each))


def test_slurm(pair: NetworkHosts) -> None:
    each = [
        {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NODELIST": "host[0-1]",
            "SLURM_JOB_ID": "123456",
            "SLURM_STEP_ID": "0",
        }
        for rank in range(4)
    ]
    joined(run(pair, each, ranks_per_host=2))


def test_msrun(pair: NetworkHosts) -> None:
    address = pair.address(0, "ipv4")
    each = [
        {"RANK_ID": str(rank), "RANK_SIZE": "2", "MS_SCHED_HOST": address, "MS_SCHED_PORT": "8118"}
        for rank in range(2)
    ]
    joined(run(pair, each))


def test_several_hosts_without_an_address_of_rank_0(pair: NetworkHosts) -> None:
    each = [{"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"} for rank in range(2)]
    for end in run(pair, each):
        refused(end, "RendezvousError", "MPICH says so", "export MASTER_ADDR")


def table_1(pair: NetworkHosts, number: type, version: str) -> dict:
    servers = [
        {
            "server_id": f"node{host}",
            "host_ip": pair.address(host, "ipv4"),
            "device": [
                {
                    "device_id": number(place),
                    "device_ip": f"192.168.{host}.{place}",
                    "rank_id": number(2 * host + place),
                }
                for place in range(2)
            ],
        }
        for host in range(2)
    ]
    table = {"version": version, "status": "completed", "server_count": number(2), "server_list": servers}
    if version == "1.2":
        table["super_pod_list"] = [
            {"super_pod_id": "0", "server_list": [{"server_id": "node0"}, {"server_id": "node1"}]}
        ]
    return table


def table_2(pair: NetworkHosts, number: type) -> dict:
    ranks = [
        {
            "rank_id": number(rank),
            "local_id": number(rank % 2),
            "device_id": number(rank % 2),
            "host_port": number(31000 + rank),
            "level_list": [
                {
                    "net_layer": 0,
                    "net_instance_id": f"server{rank // 2}",
                    "net_type": "TOPO_FILE_DESC",
                    "rank_addr_list": [{"addr_type": "EID", "addr": "00000000dfdf0001", "ports": ["0/1"]}],
                },
                {
                    "net_layer": 1,
                    "net_instance_id": "cluster",
                    "net_type": "CLOS",
                    "rank_addr_list": [{"addr_type": "IPv4", "addr": pair.address(rank // 2, "ipv4")}],
                },
            ],
        }
        for rank in range(4)
    ]
    return {"version": "2.0", "rank_count": number(4), "rank_list": ranks}


@pytest.mark.parametrize("number", [int, str])
@pytest.mark.parametrize("version", ["1.0", "1.2", "2.0"])
def test_rank_tables(pair: NetworkHosts, tmp_path: Path, version: str, number: type) -> None:
    file = tmp_path / "ranktable.json"
    table = table_2(pair, number) if version == "2.0" else table_1(pair, number, version)
    file.write_text(json.dumps(table))
    each = [{"RANK_ID": str(rank), "RANK_SIZE": "4", "RANK_TABLE_FILE": str(file)} for rank in range(4)]
    joined(run(pair, each, ranks_per_host=2))


def test_root_info(pair: NetworkHosts, tmp_path: Path) -> None:
    """No secret besides the text's own is needed."""
    program = f"""
import os, pathlib, time, collective_ops
file = pathlib.Path({str(tmp_path / "info")!r})
if os.environ["RANK"] == "0":
    file.with_suffix(".new").write_text(collective_ops.create_root_info())
    file.with_suffix(".new").rename(file)
while not file.exists():
    time.sleep(0.01)
os.environ["ARGUMENTS"] = repr(dict(root_info=file.read_text()))
{PROGRAM}"""
    clear = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), "") | {"HOME": str(tmp_path)}
    joined(pair.run_ranks([sys.executable, "-c", program], ranks_per_host=2, env=clear))


def test_a_store(pair: NetworkHosts, tmp_path: Path) -> None:
    """Any object that has set, wait and get will do."""
    program = f"""
import os, pathlib, time, collective_ops
class Store:
    folder = pathlib.Path({str(tmp_path)!r})
    def path(self, key):
        return self.folder / key.replace("/", "_")
    def set(self, key, value):
        self.path(key + "new").write_text(value)
        self.path(key + "new").rename(self.path(key))
    def wait(self, keys, timeout):
        until = time.monotonic() + timeout.total_seconds()
        while not all(self.path(key).exists() for key in keys):
            if time.monotonic() > until:
                raise TimeoutError("not there")
            time.sleep(0.01)
    def get(self, key):
        return self.path(key).read_bytes()
store = Store()
{PROGRAM.replace("**eval(", "store=store, **eval(")}"""
    clear = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), "")
    joined(pair.run_ranks([sys.executable, "-c", program], ranks_per_host=2, env=SECRET | clear))


def test_ipv6_alone() -> None:
    with NetworkHosts(2, family="ipv6") as hosts:
        joined(hosts.run_ranks(RANK, ranks_per_host=2, env=SECRET))
        joined(hosts.run_ranks(RANK, env=SECRET | {"MASTER_ADDR": "host0"}))
        link_local = hosts.run(0, "ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link")
        address = re.search(r"inet6 ([0-9a-f:]+)/", link_local).group(1)
        joined(hosts.run_ranks(RANK, env=SECRET | {"MASTER_ADDR": f"{address}%eth0"}))


def test_a_name_without_an_address(pair: NetworkHosts) -> None:
    env = SECRET | {"MASTER_ADDR": "no-such-host.invalid", "HCCL_CONNECT_TIMEOUT": "2"}
    ends = pair.run_ranks(RANK, env=env)
    refused(ends[0], "rank 1 did not come")
    refused(ends[1], "RendezvousError", 'the name "no-such-host.invalid" has no address', "/etc/hosts")


def test_a_name_that_means_loopback() -> None:
    with NetworkHosts(2) as hosts:
        # As Debian does it: harmless on rank 0's own host.
        hosts.write_hosts_file(0, f"127.0.0.1 localhost\n127.0.1.1 host0\n{hosts.address(1)} host1\n")
        joined(hosts.run_ranks(RANK, ranks_per_host=2, env=SECRET | {"MASTER_ADDR": "host0"}))
        hosts.write_hosts_file(1, "127.0.0.1 localhost\n127.0.1.1 host0 host1\n")
        env = SECRET | {"MASTER_ADDR": "host0", "HCCL_CONNECT_TIMEOUT": "2"}
        ends = hosts.run_ranks(RANK, env=env)
        refused(ends[1], "RendezvousError", "maps the name to the loopback address", hosts.address(1))
        refused(ends[0], "rank 1 did not come")


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_for_several_hosts(pair: NetworkHosts, address: str) -> None:
    for end in pair.run_ranks(RANK, env=SECRET | {"MASTER_ADDR": address}):
        refused(
            end, "RendezvousError", "this is the loopback address", "Set MASTER_ADDR", r"eth0 10\.77\.0\."
        )


@pytest.mark.parametrize("address", ["::1", "[::1]", "127.0.0.1"])
def test_loopback_for_one_host_is_no_matter(pair: NetworkHosts, address: str) -> None:
    """A job on each host."""
    each = [
        {"RANK": str(rank % 2), "WORLD_SIZE": "2", "MASTER_ADDR": address, "COLLECTIVE_OPS_JOB_ID": "one"}
        for rank in range(4)
    ]
    ends = run(pair, each, ranks_per_host=2)
    assert [end.output for end in ends] == [sum_of(2)] * 4


def test_twenty_interfaces() -> None:
    with NetworkHosts(2) as hosts:
        for host in range(2):
            for number in range(19):
                name = f"docker{number}" if number < 10 else f"net{number}"
                hosts.add_interface(host, name, f"172.{number + 16}.0.1/16")
        joined(hosts.run_ranks(RANK, ranks_per_host=2, env=SECRET))
        for choice in ("=eth0", "eth", "^docker,net"):
            joined(hosts.run_ranks(RANK, env=SECRET | {"HCCL_SOCKET_IFNAME": choice}))
        joined(hosts.run_ranks(RANK, env=SECRET | {"HCCL_SOCKET_FAMILY": "AF_INET"}))
        own = {rank: {"HCCL_IF_IP": hosts.address(rank)} for rank in range(2)}
        joined(hosts.run_ranks(RANK, env=SECRET, env_of=own))
        for end in hosts.run_ranks(RANK, env=SECRET | {"HCCL_SOCKET_IFNAME": "ib"}):
            refused(
                end, "InvalidArgumentError", 'HCCL_SOCKET_IFNAME="ib"', "eth0 10.77.0", "net18 172.34.0.1"
            )
        for end in hosts.run_ranks(RANK, env=SECRET | {"HCCL_IF_IP": "10.9.9.9"}):
            refused(end, "InvalidArgumentError", 'HCCL_IF_IP="10.9.9.9"', "no interface of this host")


def test_ports(pair: NetworkHosts) -> None:
    joined(pair.run_ranks(RANK, 2, SECRET | {"HCCL_HOST_SOCKET_PORT_RANGE": "41000-41003"}))
    holder = hold_ports(pair, 42000, 42001)
    env = SECRET | {"HCCL_CONNECT_TIMEOUT": "4"}
    ends = pair.run_ranks(RANK, env=env | {"HCCL_HOST_SOCKET_PORT_RANGE": "42000,42001"})
    refused(ends[0], "rank 0 cannot listen on ports 42000, 42001", "in use by another program")
    refused(ends[1], "did not find rank 0 at .*42000")
    # One free port among taken ones is enough.
    more_time = SECRET | {"HCCL_CONNECT_TIMEOUT": "30"}
    joined(pair.run_ranks(RANK, env=more_time | {"HCCL_HOST_SOCKET_PORT_RANGE": "42000-42002"}))
    holder.kill()


def test_two_jobs_at_once(pair: NetworkHosts) -> None:
    """With all variables equal but the job's name."""
    jobs = []
    for job in ("first", "second"):
        variables = pair.rank_environment(2, SECRET | {"COLLECTIVE_OPS_JOB_ID": job})
        jobs.append([pair.start(rank // 2, RANK, env) for rank, env in enumerate(variables)])
    for processes in jobs:
        assert [process.communicate(timeout=60)[0] for process in processes] == [sum_of(4)] * 4


def test_no_secret(pair: NetworkHosts, tmp_path: Path) -> None:
    clear = {"HOME": str(tmp_path)}
    for end in pair.run_ranks(RANK, env=clear):
        refused(end, "RendezvousError", "on several hosts and have no secret", "COLLECTIVE_OPS_SECRET=")
    joined(pair.run_ranks(RANK, env=clear | {"COLLECTIVE_OPS_INSECURE": "1"}))


def test_secret_files(pair: NetworkHosts, tmp_path: Path) -> None:
    file = tmp_path / ".config/collective-ops/secret"
    file.parent.mkdir(parents=True)
    file.write_text("a secret that lies in a file\n")
    file.chmod(0o600)
    joined(pair.run_ranks(RANK, env={"COLLECTIVE_OPS_SECRET_FILE": str(file)}))
    joined(pair.run_ranks(RANK, env={"HOME": str(tmp_path)}))
    file.chmod(0o640)
    for end in pair.run_ranks(RANK, env={"HOME": str(tmp_path)}):
        refused(end, "InvalidArgumentError", "others may read or write it", "chmod 600")
    for end in pair.run_ranks(RANK, env={"COLLECTIVE_OPS_SECRET": "hunter2"}):
        refused(end, "InvalidArgumentError", "can be guessed")
        assert "hunter2" not in end.output


def test_a_wrong_secret(pair: NetworkHosts) -> None:
    env = SECRET | {"HCCL_CONNECT_TIMEOUT": "6"}
    other = {1: {"COLLECTIVE_OPS_SECRET": "another secret of this rank"}}
    ends = pair.run_ranks(RANK, env=env, env_of=other)
    refused(ends[1], "did not let it in", "secret differs")
    refused(ends[0], "rank 1 did not come", r"did not know its secret, the last one from 10\.77\.0\.2")


def test_strangers_at_the_port(pair: NetworkHosts) -> None:
    """Some send garbage, some nothing, some very slowly; ranks join all the same, in time."""
    flood = """
import socket, time
held = []
for number in range(100000):
    try:
        stranger = socket.create_connection(("10.77.0.1", 29501), timeout=1)
        if number % 3 == 0: stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" * 9)
        if number % 3 == 1: stranger.sendall(b"x")
        held.append(stranger)
    except OSError:
        time.sleep(0.01)
    if len(held) == 100: print("up", flush=True)
    if len(held) == 400: break
time.sleep(60)
"""
    environment = pair.rank_environment(1, SECRET)
    first = pair.start(0, RANK, environment[0])
    flooder = pair.start(1, [sys.executable, "-c", flood])
    assert flooder.stdout.readline() == "up\n"
    second = pair.start(1, RANK, environment[1])
    assert second.communicate(timeout=60)[0] == sum_of(2)
    assert first.communicate(timeout=60)[0] == sum_of(2)
    flooder.kill()


def test_hosts_that_cannot_reach_each_other_are_named() -> None:
    with NetworkHosts(3) as hosts:
        hosts.cut(1, 2)
        ends = hosts.run_ranks(RANK, env=SECRET, timeout=60)
        for end in ends:
            refused(end, r"rank 1 on host1 .* cannot reach rank 2 on host2 .*No route to host")


def connections(hosts: NetworkHosts) -> str:
    """Those of host 1 with host 0."""
    return hosts.run(1, "ss", "-tniH", "state", "established", "dst", hosts.address(0))


def test_a_rank_that_dies_while_others_wait() -> None:
    with NetworkHosts(2) as hosts:
        variables = hosts.rank_environment(2, SECRET)
        started = [hosts.start(rank // 2, RANK, variables[rank]) for rank in (0, 1)]
        third = hosts.start(1, RANK, variables[2])
        # It has registered once rank 0's host has more of it than the proof of the secret.
        deadline = time.monotonic() + 30
        while not any(int(sent) > 100 for sent in re.findall(r"bytes_acked:(\d+)", connections(hosts))):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(third.pid, 9)
        for process in started:
            output = process.communicate(timeout=30)[0]
            assert re.search(r"rank 2 on host1 .* ended", output), output


def test_ranks_of_one_host_need_no_secret(tmp_path: Path) -> None:
    """Where rank 0's address is not loopback, and nothing says that all are here."""
    with NetworkHosts(1) as hosts:
        env = {"MASTER_ADDR": hosts.address(0), "LOCAL_WORLD_SIZE": "", "HOME": str(tmp_path)}
        joined(hosts.run_ranks(RANK, ranks_per_host=3, env=env))


def test_the_example() -> None:
    script = Path(__file__).parents[2] / "examples/two_hosts.sh"
    done = subprocess.run(
        [str(script)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    for rank in range(4):  # lines of ranks that print at once may run into each other
        assert done.stdout.count(f"rank {rank} of 4: [6.0, 10.0, 14.0, 18.0]") == 1, done.stdout
