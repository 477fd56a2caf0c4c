"""`collective-ops perf`: what it prints, under which launchers it runs, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import collective_ops
import pytest
from collective_ops import cli, perf

PERF = [sys.executable, "-m", "collective_ops", "perf"]
ENVIRONMENT = {
    **{
        name: text
        for name, text in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    },
    "PYTHONPATH": str(Path(collective_ops.__path__[0]).parent),
}
pytestmark = pytest.mark.skipif(not perf.PROGRAM.exists(), reason="built without _perf")
COLLECTIVES = "all_reduce all_gather reduce_scatter broadcast reduce gather scatter alltoall barrier".split()
NCCL_ROW = (
    r" *(?P<size>\d+) +(?P<count>\d+) +(?P<type>\w+) +(?P<op>\w+) +(?P<root>-?\d+)"
    r"( +(?P<time>[\d.]+) +[\d.]+ +[\d.]+ +(?P<wrong>\S+)| +N/A +N/A +N/A +N/A){2}"
)


def measure(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERF, *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_layout_of_hccl_test(collective: str) -> None:
    run = measure(collective, "-p", "3", "-b", "4K", "-e", "64K", "-f", "4", "-n", "3", "-w", "1")
    assert run.returncode == 0, run.stderr
    first, header, *rows = run.stdout.splitlines()
    assert first == "the minbytes is 4096, maxbytes is 65536, iters is 3, warmup_iters is 1"
    assert header == "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:"
    sizes = ["0"] if collective == "barrier" else ["4096", "16384", "65536"]
    result = "NULL" if collective == "barrier" else "success"
    assert [row.split()[0] for row in rows] == sizes
    for row in rows:
        assert re.fullmatch(
            r"(?=.{17} \| .{14} \| .{20} \| )\d+ +\| \d+\.\d\d +\| \d+\.\d{5} +\| " + result, row
        )


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_layout_of_nccl_tests(collective: str) -> None:
    run = measure(collective, "-p", "2", "-b", "8K", "-e", "8K", "-n", "3", "--format", "nccl-tests")
    assert run.returncode == 0, run.stderr
    rows = [line for line in run.stdout.splitlines() if not line.startswith("#")]
    assert len(rows) == 1
    found = re.fullmatch(NCCL_ROW, rows[0])
    assert found and len(rows[0]) == 116, rows[0]
    parts = collective in ("all_gather", "reduce_scatter", "gather", "scatter", "alltoall")
    assert int(found["count"]) == (0 if collective == "barrier" else 1024 if parts else 2048)
    assert found["root"] == ("0" if collective in ("broadcast", "reduce", "gather", "scatter") else "-1")
    assert found["op"] == ("sum" if "reduce" in collective else "none")
    assert run.stdout.splitlines()[-3] == "# Out of bounds values : 0 OK"


def test_json_has_what_the_tables_have() -> None:
    run = measure("all_gather", "-p", "2", "-b", "8K", "-e", "16K", "-f", "2", "-d", "bfp16", "--json")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert (document["collective"], document["type"], document["ranks"]) == ("all_gather", "bfloat16", 2)
    assert [(row["bytes"], row["in_place"]) for row in document["rows"]] == [
        (8192, False), (8192, True), (16384, False), (16384, True)
    ]  # fmt: skip
    for row in document["rows"]:
        assert row["wrong"] == 0
        assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3, rel=1e-2)
        assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] / 2, rel=1e-4)


LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher_meet(launcher: str) -> None:
    rank_name, *size_names = LAUNCHERS[launcher]
    ranks = [
        subprocess.Popen(
            [*PERF, "all_reduce", "-b", "8K", "-e", "8K", "-n", "2"],
            env={**ENVIRONMENT, **dict.fromkeys(filter(None, size_names), "2"), rank_name: str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0][0].splitlines()[-1].endswith("| success")
    assert outputs[1][0] == ""


@pytest.mark.parametrize(
    "arguments, environment, text",
    [
        (["all_reduce"], {}, "how many ranks? -p N starts them"),
        (["all_reduce", "-p", "2", "-r", "2"], {}, "-r 2: the ranks are 0 to 1"),
        (["fly", "-p", "2"], {}, '"fly": expected all_reduce'),
        (
            ["reduce", "-p", "4"],
            {"PMI_RANK": "0", "PMI_SIZE": "2"},
            "-p 4, but the launcher has started 2 ranks",
        ),
        (
            ["reduce", "-p", "3"],
            {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
            "-p 3, but the launcher has started 4 ranks",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], environment: dict[str, str], text: str
) -> None:
    run = measure(*arguments, **environment)
    assert run.returncode == 2
    assert text in run.stderr and run.stdout == ""


def test_ranks_that_choose_by_different_variables_are_told() -> None:
    common = {**ENVIRONMENT, "WORLD_SIZE": "2", "HCCL_EXEC_TIMEOUT": "60"}
    ranks = [
        subprocess.Popen(
            [*PERF, "all_reduce", "-b", "64K", "-e", "64K"],
            env={**common, "RANK": str(rank), "NCCL_ALGO": algorithm},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, algorithm in enumerate(("Ring", ""))
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=50)
        assert rank.returncode == 1
        assert "NCCL_ALGO or HCCL_DETERMINISTIC; set them alike on all ranks" in errors


def test_options_may_come_first_and_help_is_the_programs() -> None:
    assert measure("-p", "1", "-b", "8", "-e", "8", "all_reduce").returncode == 0
    run = measure("--help")
    assert run.returncode == 0
    assert run.stdout.startswith("usage: collective-ops perf COLLECTIVE [options]")


def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perf, "PROGRAM", tmp_path / "_perf")
    assert cli.main(["perf", "all_reduce"]) == 1
    assert "make build" in capsys.readouterr().err


def test_the_example_runs(tmp_path: Path) -> None:
    command = tmp_path / "collective-ops"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m collective_ops "$@"\n')
    command.chmod(0o755)
    script = Path(__file__).parents[2] / "examples/perf_sweep.sh"
    run = subprocess.run(
        [str(script), "2", "16K"],
        env={**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("# Out of bounds values : 0 OK") == 8
