"""`collective-ops tune`: the machine's numbers, where they are kept, and a call's algorithms."""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import collective_ops
import pytest
from collective_ops import cli, perf, topo, tune

needs_programs = pytest.mark.skipif(
    not all(one.PROGRAM.exists() for one in (tune, topo, perf)), reason="built without the programs"
)
PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)
MACHINE = {
    "cores": 2,
    "copy_bytes_per_ns": 40.0,
    "reduce_bytes_per_ns": 55.0,
    "memory_bytes_per_ns": 13.0,
    "cache_bytes": 2**20,
    "signal_ns": 150.0,
    "yield_ns": 800.0,
    "copy_fit": {"start_ns": 100.0, "bytes_per_ns": 40.0, "residual": 0.04},
    "reduce_fit": {"start_ns": 100.0, "bytes_per_ns": 55.0, "residual": 0.02},
    "seconds": 0.5,
}
HOST = {
    "processor": "Processor",
    "cpus": [{"cpu": cpu, "core": cpu, "socket": 0, "numa_node": 0, "allowed": True} for cpu in range(2)],
    "caches": [{"level": 2, "bytes": 2**20, "cpus": [0]}],
    "numa_nodes": [{"node": 0, "bytes": 2**30}],
}


@pytest.mark.parametrize(
    "text, size",
    [("1MiB", 2**20), ("64K", 2**16), ("4096", 4096), ("1.5g", 3 * 2**29), ("8 kb", 8192), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert tune.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1TiB", "-1", "1 M i"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 1MiB"):
        tune.parse_size(text)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What the native program was asked, in place of asking it."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(topo, "read_host", lambda: HOST)
    monkeypatch.setattr(tune, "_native", lambda *words: asked.append(words) or dict(MACHINE))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return asked


def test_numbers_are_measured_once_and_kept(
    probes: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune.read_machine()
    assert probes == [("probe", 2**20, 0, 1)]
    assert tune.read_machine() == first and len(probes) == 1
    tune.read_machine(again=True)
    assert len(probes) == 2
    fewer = copy.deepcopy(HOST)
    fewer["cpus"][1]["allowed"] = False
    monkeypatch.setattr(topo, "read_host", lambda: fewer)
    tune.read_machine()
    assert probes[2:] == [("probe", 2**20, 0)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cores": 0}', json.dumps(MACHINE | {"signal_ns": "x"})])
def test_kept_numbers_that_cannot_be_used_are_measured_anew(probes: list[tuple[Any, ...]], text: str) -> None:
    tune.read_machine()
    (file,) = tune.cache_folder().iterdir()
    file.write_text(text)
    assert tune.read_machine()["signal_ns"] == 150.0
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
    assert lines[1].split()[:5] == ["algorithm", "path", "priced", "us", "latency"]
    rows = [line[1:].split() for line in lines[2:] if line[1:2] == " " and line[2:].strip()][:5]
    prices = [float(row[2]) for row in rows]
    assert prices == sorted(prices) and {row[0] for row in rows} >= {"direct", "two_shot", "ring", "tree"}
    for row in rows:
        assert float(row[2]) == pytest.approx(float(row[3]) + max(float(row[4]), float(row[5])), abs=0.02)
    assert any(line.startswith("> taken: direct, direct, by the measured thresholds") for line in lines)
    assert any(line.startswith("taken by size:    one_shot, from 4 KiB direct") for line in lines)
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
    assert all(machine[name] > 0 for name in (*tune.NUMBERS, "cores"))
    assert len(list((tmp_path / "collective-ops").iterdir())) == 1
    text = tune.describe_machine(machine)
    assert "hand-over between cores" in text and "the fit is" in text


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
