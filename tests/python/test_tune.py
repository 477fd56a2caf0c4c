"""`collective-ops tune`: the machine's numbers, where they are kept, and a call's algorithms."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import collective_ops
import pytest
from collective_ops import cli, perf, sweep, topo, tune

needs_programs = pytest.mark.skipif(
    not all(one.PROGRAM.exists() for one in (tune, topo, perf)), reason="built without the programs"
)
PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)
NUMBERS = {
    "load_near_ns": 0.01,
    "load_far_ns": 0.07,
    "store_near_ns": 0.011,
    "store_far_ns": 0.04,
    "reduce_ns": 0.002,
    "memory_bytes_per_ns": 26.0,
    "call_ns": 106.0,
    "step_ns": 73.0,
    "signal_ns": 190.0,
    "line_ns": 24.0,
    "yield_ns": 1280.0,
    "read_call_ns": 1080.0,
    "read_byte_ns": 0.066,
}
MACHINE = {
    "cores": 2,
    "cache_bytes": 2**21,
    "shared_cache_bytes": 2**25,
    "numbers": [
        {"name": name, "value": value, "unit": "ns", "meaning": "it is"} for name, value in NUMBERS.items()
    ],
    "calls": 100,
    "median_error": 0.12,
    "worst_error": 0.5,
    "seconds": 0.5,
}
HOST = {
    "processor": "Processor",
    "cpus": [{"cpu": cpu, "core": cpu, "socket": 0, "numa_node": 0, "allowed": True} for cpu in range(2)],
    "caches": [{"level": 2, "bytes": 2**20, "cpus": [0]}, {"level": 3, "bytes": 2**25, "cpus": [0, 1]}],
    "numa_nodes": [{"node": 0, "bytes": 2**30}],
}


@pytest.mark.parametrize(
    "text, size",
    [("1MiB", 2**20), ("64K", 2**16), ("4096", 4096), ("1.5g", 3 * 2**29), ("8 kb", 8192), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert tune.parse_size(text) == size


@pytest.mark.parametrize(
    "text, name",
    [("allreduce", "all_reduce"), ("All-To-All", "all_to_all"), ("broadcast_perf", "broadcast")]
    + [(name, name) for name in tune.COLLECTIVES],
)
def test_collectives_as_other_tools_spell_them(text: str, name: str) -> None:
    assert tune.parse_collective(text) == name


@pytest.mark.parametrize("text", ["", "all", "sum"])
def test_no_collectives(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected all_reduce, all_gather"):
        tune.parse_collective(text)


@pytest.mark.parametrize("text", ["", "MiB", "1TiB", "-1", "1 M i"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 1MiB"):
        tune.parse_size(text)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What the native program was asked, in place of asking it."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(topo, "read_host", lambda: HOST)
    monkeypatch.setattr(tune, "_native", lambda *words: asked.append(words) or copy.deepcopy(MACHINE))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return asked


def test_numbers_are_measured_once_and_kept(
    probes: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune.read_machine()
    assert probes == [("probe", 2**20, 2**25, 0, 1)]
    assert tune.read_machine() == first and len(probes) == 1
    tune.read_machine(again=True)
    assert len(probes) == 2
    fewer = copy.deepcopy(HOST)
    fewer["cpus"][1]["allowed"] = False
    monkeypatch.setattr(topo, "read_host", lambda: fewer)
    tune.read_machine()
    assert probes[2:] == [("probe", 2**20, 2**25, 0)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cores": 0}', json.dumps(MACHINE | {"numbers": [{}]})])
def test_kept_numbers_that_cannot_be_used_are_measured_anew(probes: list[tuple[Any, ...]], text: str) -> None:
    tune.read_machine()
    (file,) = tune.cache_folder().iterdir()
    file.write_text(text)
    assert tune.numbers_of(tune.read_machine())["signal_ns"] == 190.0
    assert len(probes) == 2
    assert json.loads(file.read_text())["cores"] == 2


def test_a_folder_that_cannot_be_written_is_one_line(
    probes: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert tune.read_machine()["cores"] == 2
    assert capsys.readouterr().err.startswith("collective-ops tune: the numbers are not kept: ")


def test_crossovers() -> None:
    def curve(size: int, cheapest: str, taken: str) -> dict[str, Any]:
        names = [cheapest, taken] if cheapest != taken else [taken]
        return {"bytes": size, "candidates": [{"algorithm": name, "chosen": name == taken} for name in names]}

    curves = [curve(64, "a", "a"), curve(128, "b", "a"), curve(256, "b", "b"), curve(512, "b", "b")]
    assert tune.crossovers(curves, chosen=True) == [(64, "a"), (256, "b")]
    assert tune.crossovers(curves, chosen=False) == [(64, "a"), (128, "b")]


@needs_programs
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "reduce"])
def test_the_choice_is_what_a_trace_shows(collective: str, shared: bool, tmp_path: Path) -> None:
    sizes = [256, 8192, 262144, 1048576]
    for size in sizes:
        folder = tmp_path / str(size)
        folder.mkdir()
        run = subprocess.run(
            [str(perf.PROGRAM), collective, "-p", "2", "-b", str(size), "-e", str(size), "-n", "1", "-w", "0"]
            + ["-c", "0", "-z", str(int(shared))],
            env={**os.environ, "COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        events = json.loads((folder / "comm_trace.json").read_text())
        calls = [
            event["args"]
            for event in (events if isinstance(events, list) else events["traceEvents"])
            if event.get("name") == collective and event.get("args", {}).get("bytes", 0) >= size // 2
        ]
        found = tune.explain(MACHINE, collective, size, 2, shared=shared)
        chosen = next(one for one in found.candidates if one["chosen"])
        if any(call["path"] == "staged" for call in calls) and chosen["path"] == "read":
            continue  # the kernel does not let processes read each other
        assert {(call["algorithm"], call["path"]) for call in calls} == {
            (chosen["algorithm"], chosen["path"])
        }, size


@needs_programs
def test_explain_prints_candidates_terms_choice_and_crossovers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    picture = tmp_path / "cost.png"
    assert cli.main(["tune", "explain", "all_reduce", "1MiB", "--ranks", "8", "--png", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce of 1 MiB float32, 8 ranks, shared buffers"
    assert lines[1].split()[:5] == ["algorithm", "path", "priced", "us", "waiting"]
    rows = [line[1:].split() for line in lines[2:] if line[1:2] == " " and line[2:].strip()][:8]
    prices = [float(row[2]) for row in rows]
    assert prices == sorted(prices) and {row[0] for row in rows} >= {"direct", "two_shot", "ring", "tree"}
    for row in rows:
        assert float(row[2]) == pytest.approx(float(row[3]) + float(row[4]) + float(row[5]), abs=0.02)
    assert any(line.startswith("> taken: direct, direct, by the built-in table") for line in lines)
    assert any(re.fullmatch(r"taken by size:    one_shot, from \d+ KiB direct", line) for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_programs
def test_measured_times_stand_beside_the_prices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    assert cli.main(["tune", "explain", "broadcast", "4K", "--ranks", "2", "--measure", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured_us"].keys() == {one["algorithm"] for one in document["candidates"]}
    assert all(value > 0 for value in document["measured_us"].values())


@needs_programs
def test_a_forced_algorithm_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    monkeypatch.setenv("COLLECTIVE_OPS_ALGORITHM", "ring")
    assert cli.main(["tune", "explain", "all_reduce", "64K", "--ranks", "2"]) == 0
    text = capsys.readouterr().out
    assert "> taken: ring, staged, since COLLECTIVE_OPS_ALGORITHM=ring" in text
    assert "taken by size:    ring, from 8 MiB none" in text
    assert cli.main(["tune", "explain", "all_reduce", "64M", "--ranks", "2"]) == 1
    assert "that algorithm is for hosts" in capsys.readouterr().err
    monkeypatch.setenv("COLLECTIVE_OPS_ALGORITHM", "star")
    assert cli.main(["tune", "explain", "all_reduce", "64K", "--ranks", "2"]) == 1
    assert 'COLLECTIVE_OPS_ALGORITHM="star": expected auto' in capsys.readouterr().err


@needs_programs
@pytest.mark.parametrize(
    "name, text, algorithm", [("HCCL_ALGO", "level0:NA;level1:ring", "ring"), ("NCCL_ALGO", "Tree", "tree")]
)
def test_variables_of_other_libraries_are_named(
    name: str, text: str, algorithm: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    monkeypatch.setenv(name, text)
    assert cli.main(["tune", "explain", "all_reduce", "64K", "--ranks", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"> taken: {algorithm}, staged, since {name}={text}" in printed
    assert "taken by size:    " + algorithm in printed and " direct" in printed.splitlines()[-2]


@needs_programs
def test_this_machine_is_measured(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "collective_ops", "tune", "--json"],
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "could not be measured together" in run.stderr:
        pytest.skip("other programs use the cores")
    assert run.returncode == 0, run.stderr
    machine = json.loads(run.stdout)
    assert machine["cores"] > 0 and machine["calls"] > 40
    assert all(value > 0 for value in tune.numbers_of(machine).values())
    assert tune.numbers_of(machine).keys() == tune.numbers_of(MACHINE).keys()
    assert len(list((tmp_path / "collective-ops").iterdir())) == 1
    text = tune.describe_machine(machine)
    assert "hand-over between cores" in text and "a median error of" in text


@pytest.mark.parametrize(
    "text, speed, latency",
    [("10Gbit/s", 1.25, 20e3), ("100Gbit/s,5us", 12.5, 5e3), ("1.5GB/s, 800ns", 1.5, 800.0)],
)
def test_links(text: str, speed: float, latency: float) -> None:
    link = tune.parse_link(text)
    assert (link["link_bytes_per_ns"], link["link_latency_ns"]) == (speed, latency)


@pytest.mark.parametrize("text", ["", "fast", "0Gbit/s", "10Gbit", "10Gbit/s,5"])
def test_no_links(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a link such as 10Gbit/s"):
        tune.parse_link(text)


@needs_programs
def test_hosts_have_links(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    words = ["tune", "explain", "all_reduce", "16MiB", "--ranks", "8", "--hosts", "2", "--json"]
    assert cli.main(words) == 0
    slow = json.loads(capsys.readouterr().out)["candidates"]
    assert cli.main([*words, "--link", "100Gbit/s"]) == 0
    fast = json.loads(capsys.readouterr().out)["candidates"]
    assert {one["path"] for one in slow} == {"messages"}
    taken = [next(one for one in list if one["chosen"]) for list in (slow, fast)]
    assert [one["algorithm"] for one in taken] == ["pieces"] * 2
    assert taken[0]["link_ns"] == pytest.approx(10 * taken[1]["link_ns"])
    assert taken[0]["total_ns"] > taken[1]["total_ns"]
    assert cli.main(words[:-3] + ["--hosts", "2"]) == 0
    text = capsys.readouterr().out
    assert "8 ranks on 2 hosts" in text and "by the number of hosts and the size" in text
    assert cli.main(["tune", "explain", "all_reduce", "1M", "--ranks", "8", "--hosts", "3"]) == 1
    assert "as many ranks on each host" in capsys.readouterr().err


def point(size: int, shared: bool, algorithm: str, path: str, us: float, **more: Any) -> sweep.Point:
    fields = {"collective": "all_reduce", "ranks": 2, "chosen": False, "ordered": True} | more
    return sweep.Point(bytes=size, shared=shared, algorithm=algorithm, path=path, us=[us], **fields)


def test_a_table_names_the_best_pairs_that_can_be_told_apart() -> None:
    points = []
    for size, times in {
        64: {"one_shot": 1.0, "direct": 2.0, "two_shot": 3.0, "read": 4.0},
        4096: {"one_shot": 2.0, "direct": 1.0, "two_shot": 3.0, "read": 4.0},
        65536: {"one_shot": 4.0, "direct": 1.0, "two_shot": 3.0, "read": 2.0},
    }.items():
        for shared in (True, False):
            for name, us in times.items():
                if (name == "direct") <= shared and (name == "read") <= (not shared):
                    points.append(
                        point(size, shared, name, name if name in ("direct", "read") else "staged", us)
                    )
            points.append(point(size, shared, "ring", "staged", 0.1, ordered=False))
            points.append(point(size, shared, "auto", "", 0.1))
    assert sweep.rows_of(points) == [
        ("all_reduce", 2, 0, "one_shot", "one_shot"),
        ("all_reduce", 2, 512, "direct", "one_shot"),
        ("all_reduce", 2, 16384, "direct", "read"),
    ]
    # Of a reduce only the root hears from all: beside one_shot goes what a rank can do that decides alone.
    rooted = [sweep.Point(**vars(one) | {"collective": "reduce"}) for one in points]
    assert [row[3:] for row in sweep.rows_of(rooted)] == [
        ("one_shot", "one_shot"),
        ("direct", "two_shot"),
        ("direct", "read"),
    ]
    rooted.append(point(4096, True, "pull", "direct", 1.1, collective="reduce"))
    assert [row[3:] for row in sweep.rows_of(rooted)] == [
        ("one_shot", "one_shot"),
        ("pull", "one_shot"),
        ("direct", "read"),
    ]


@needs_programs
def test_a_table_is_measured_written_and_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    monkeypatch.setattr(tune, "TABLE_SIZES", [64, 65536])
    file = tmp_path / "table.txt"
    words = ["tune", "table", "--ranks", "2", "--collective", "broadcast", "--output", str(file)]
    assert cli.main(words) == 0
    assert file.read_text().startswith("collective-ops tuning table 1\n")
    assert " * 2 0 " in file.read_text()
    file.write_text(sweep.table_text([("broadcast", 2, 0, "staged", "staged")]))
    monkeypatch.setenv("COLLECTIVE_OPS_TUNING_TABLE", str(file))
    capsys.readouterr()
    assert cli.main(["tune", "explain", "broadcast", "64", "--ranks", "2"]) == 0
    assert f"> taken: staged, staged, by COLLECTIVE_OPS_TUNING_TABLE={file}" in capsys.readouterr().out
    # And that is what runs.
    run = subprocess.run(
        [str(perf.PROGRAM), "broadcast", "-p", "2", "-b", "64", "-e", "64", "-n", "1", "-w", "0", "-c", "0"],
        env={**os.environ, "COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    events = json.loads((tmp_path / "comm_trace.json").read_text())
    calls = [
        event["args"]["algorithm"]
        for event in (events if isinstance(events, list) else events["traceEvents"])
        if event.get("name") == "broadcast"
    ]
    assert calls and set(calls) == {"staged"}


@needs_programs
def test_the_built_in_table_is_a_table(tmp_path: Path) -> None:
    printed = subprocess.run(
        [str(tune.PROGRAM), "table"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    file = tmp_path / "table.txt"
    file.write_text(printed)
    again = subprocess.run(
        [str(tune.PROGRAM), "table", str(file)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert again == printed and printed.count("\n") > 50


@needs_programs
def test_the_example_runs(tmp_path: Path) -> None:
    command = tmp_path / "collective-ops"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m collective_ops "$@"\n')
    command.chmod(0o755)
    run = subprocess.run(
        [str(Path(__file__).parents[2] / "examples/which_algorithm.sh"), "2", "64K"],
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("> taken: ") == 8
