"""`collective-ops topo`: what it judges of a host it is told about, and what it shows of this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import collective_ops
import pytest
from collective_ops import cli, topo
from rank_pool import RankPool, report

needs_program = pytest.mark.skipif(not topo.PROGRAM.exists(), reason="built without _topo")


def host_of(sockets: int = 2, nodes: int = 2, cores: int = 2) -> dict:
    """Every socket has `nodes` NUMA nodes of `cores` cores, each of two cpus, which are numbered by turns."""
    count = sockets * nodes * cores
    cpus = [
        {
            "cpu": cpu,
            "core": cpu % count,
            "socket": cpu % count // (nodes * cores),
            "numa_node": cpu % count // cores,
            "allowed": cpu != count - 1,
        }
        for cpu in range(2 * count)
    ]
    return {
        "host": "box",
        "processor": "Processor",
        "cpus": cpus,
        "caches": [{"level": 2, "bytes": 2**20, "cpus": [core, core + count]} for core in range(count)],
        "numa_nodes": [{"node": node, "bytes": 2**34} for node in range(sockets * nodes)],
        "interfaces": [{"name": "eth0", "up": True, "addresses": ["10.0.0.1"], "megabits": 10000}],
    }


def matrix(size: int, value: float, **special: float | None) -> list[list[float | None]]:
    """All `value`, but for special cells such as r0c1=2.0."""
    rows = [[None if row == column else value for column in range(size)] for row in range(size)]
    for name, other in special.items():
        row, column = map(int, name[1:].split("c"))
        rows[row][column] = other
    return rows


@pytest.mark.parametrize(
    "cpus, kind",
    [
        ((0, 0), "same cpu"),
        ((0, 8), "same core"),
        ((0, 1), "same NUMA node"),
        ((0, 2), "same socket"),
        ((0, 4), "other socket"),
    ],
)
def test_the_kind_of_a_link(cpus: tuple[int, int], kind: str) -> None:
    assert topo.kind_of(host_of(), *cpus) == kind


def test_slow_and_down_links_are_marked() -> None:
    host = host_of(sockets=1, nodes=1, cores=5)
    places = [topo.Place(number, number) for number in range(4)]
    latency = matrix(4, 100.0, r0c1=149.0, r2c3=151.0)
    bandwidth = matrix(4, 10.0, r3c0=6.6, r1c0=6.7, r1c2=None)
    states = {
        (link.sender, link.receiver): link.state for link in topo.judge(host, places, latency, bandwidth)
    }
    assert {ends: state for ends, state in states.items() if state != "ok"} == {
        (2, 3): "slow", (3, 0): "slow", (1, 2): "down"
    }  # fmt: skip
    assert len(states) == 12


def test_kinds_are_compared_with_their_own_alone() -> None:
    host = host_of(sockets=2, nodes=1, cores=3)
    places = [topo.Place(number, number) for number in range(6)]
    far = {f"r{a}c{b}": 300.0 for a in range(6) for b in range(6) if a // 3 != b // 3}
    links = topo.judge(host, places, matrix(6, 100.0, **far), matrix(6, 10.0))
    assert {link.kind for link in links} == {"same NUMA node", "other socket"}
    assert all(link.state == "ok" for link in links)


def test_two_links_say_nothing_about_what_is_usual() -> None:
    places = [topo.Place(0, 0), topo.Place(1, 1)]
    links = topo.judge(host_of(), places, matrix(2, 1.0, r0c1=100.0), matrix(2, 1.0))
    assert [link.state for link in links] == ["ok", "ok"]


def test_the_text() -> None:
    host = host_of(sockets=1, nodes=2, cores=2)
    places = [topo.Place(0, 0), topo.Place(1, 1, bound=False), topo.Place(2, 2), topo.Place(3, 2)]
    links = topo.judge(host, places, matrix(4, 100.0, r0c3=None), matrix(4, 10.0, r0c3=None))
    text = topo.describe(host, "rank", places, links, None)
    assert "1 socket, 2 NUMA nodes, 4 cores, 8 cpus, of which 7 may be used" in text
    assert "    core 0  cpu 0  L2 1 MiB (of 2 cpus)  rank 0\n" in text
    assert "rank 1?" in text and "rank 2, 3" in text and "cpu 3  L2 1 MiB (of 2 cpus)  not to be used" in text
    assert "  eth0  up  10000 Mbit/s  10.0.0.1" in text
    assert "     0      -     100     100       x\n" in text
    assert "     3   10.0    10.0    10.0       -" in text
    assert "rank 0 to 3 (same socket): could not be measured" in text
    one = topo.describe(host, "rank", places, [link for link in links if link.sender == 2], 2)
    assert "\n     2    100     100       -     100" in one
    assert "\n     1" not in one


def test_the_process_of_a_rank_is_placed(tmp_path: Path) -> None:
    folder = tmp_path / "17"
    folder.mkdir()
    (folder / "stat").write_text(f"17 (a) b) S {' '.join(['0'] * 35)} 5 0 0\n")
    (folder / "status").write_text("Name:\tx\nCpus_allowed_list:\t2-3,5\n")
    assert topo.place_of_process(4, 17, tmp_path) == (topo.Place(4, 5, bound=False), [2, 3, 5])
    (folder / "status").write_text("Cpus_allowed_list:\t3\n")
    assert topo.place_of_process(4, 17, tmp_path) == (topo.Place(4, 3, bound=True), [3])


def test_ranks_that_were_seen_on_one_cpu_are_measured_on_several() -> None:
    def seen(number: int, cpu: int, *cpus: int) -> tuple[topo.Place, tuple[int, ...]]:
        return topo.Place(number, cpu, bound=len(cpus) == 1), cpus

    found = [
        seen(0, 1, 0, 1, 2),
        seen(1, 1, 0, 1, 2),
        seen(2, 2, 2),
        seen(3, 1, 0, 1, 2),
        seen(4, 2, 0, 1, 2),
    ]
    assert [place.cpu for place in topo.spread(found)] == [1, 0, 2, 1, 2]


@needs_program
def test_this_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "links.png"
    code = cli.main(
        ["topo", "--json", *(["--png", str(picture)] if len(os.sched_getaffinity(0)) > 1 else [])]
    )
    document = json.loads(capsys.readouterr().out)
    assert {cpu["cpu"] for cpu in document["cpus"] if cpu["allowed"]} == os.sched_getaffinity(0)
    assert document["unit"] == "core"
    ends = [place["number"] for place in document["places"]]
    assert [(link["sender"], link["receiver"]) for link in document["links"]] == [
        (a, b) for a in ends for b in ends if a != b
    ]
    assert code == (3 if any(link["state"] != "ok" for link in document["links"]) else 0)
    if len(ends) > 1:
        assert picture.read_bytes().startswith(b"\x89PNG")


def stay(cpus: list[int]) -> None:
    os.sched_setaffinity(0, {cpus[int(os.environ["RANK"])]})
    collective_ops.init_hccl()
    report("joined")
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pause()


@needs_program
def test_the_ranks_of_a_running_job(rank_pool: RankPool, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpus = [allowed[0], allowed[-1]]
    ranks = rank_pool.start(stay, 2, (cpus,))
    try:
        for rank in range(2):
            assert ranks.receive(rank) == "joined"
        assert cli.main(["topo", str(ranks.pids[0]), "--json", "-i", "1"]) in (0, 3)
        document = json.loads(capsys.readouterr().out)
    finally:
        ranks.abort()
    assert document["unit"] == "rank"
    assert document["places"] == [{"number": rank, "cpu": cpus[rank], "bound": True} for rank in range(2)]
    assert [(link["sender"], link["receiver"]) for link in document["links"]] == [(0, 1), (1, 0)]


@needs_program
def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topo", "-i", "999", "--no-links"]) == 1
    assert "-i 999: there is no such core" in capsys.readouterr().err
    assert cli.main(["topo", "no-such-job"]) == 1
    assert "0 jobs are known as 'no-such-job'" in capsys.readouterr().err


def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(topo, "PROGRAM", tmp_path / "_topo")
    assert cli.main(["topo"]) == 1
    assert "make build" in capsys.readouterr().err


@needs_program
def test_a_processor_that_cannot_be_used_is_an_error() -> None:
    done = subprocess.run(
        [str(topo.PROGRAM), "0", "x"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and '"x" is no number of a processor' in done.stderr


@needs_program
def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples/slow_links.py"
    package = str(Path(collective_ops.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, str(example)],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if len(os.sched_getaffinity(0)) > 1:
        assert " GB/s, " in done.stdout or "could not be measured" in done.stdout
