"""The analysis on recordings of real runs: of our own communicator, made here, and of others' jobs, whose
numbers are known; those are skipped where the data does not lie beside the project."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import analyzed, rows_of, write

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the real profiles do not lie beside the project")


def values(value: Any, *path: str) -> dict[tuple[str, ...], Any]:
    """The leaves of nested objects and lists, by path."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in values(part, *path, key).items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in values(part, *path, str(i)).items()}
    return {path: value}


@needs_data
def test_real_ascend_numbers_are_those_of_the_existing_tool(tmp_path: Path) -> None:
    report = analyze.cluster(DATA / "ascend" / "text_level1", "all", tmp_path)
    expected = DATA / "ascend" / "expected" / "text_level1" / "cluster_analysis_output"
    for name in ("cluster_communication.json", "cluster_communication_matrix.json"):
        # The tool calls the group (0, 1), for only two of its eight members have profiles.
        theirs = next(iter(json.loads((expected / name).read_text()).values()))
        ours = json.loads((tmp_path / "cluster_analysis_output" / name).read_text())
        assert list(ours) == ["(0, 1, 2, 3, 4, 5, 6, 7)"]
        found = values(ours["(0, 1, 2, 3, 4, 5, 6, 7)"])
        for path, value in values(theirs).items():
            assert found[path] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), (
                path
            )
    with (expected / "cluster_step_trace_time.csv").open(newline="") as file:
        theirs = list(csv.DictReader(file))
    ours = rows_of(report, "cluster_step_trace_time.csv")
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for column in other:
            same = (
                mine[column] == other[column]
                if column == "Type"
                else float(mine[column]) == float(other[column])
            )
            assert same, column
    assert report.data["missing_ranks"] == [2, 3, 4, 5, 6, 7]


@needs_data
def test_real_databases_give_the_tables_of_the_existing_tool(tmp_path: Path) -> None:
    report = analyze.cluster(DATA / "ascend" / "db_level1", "all", tmp_path)

    def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
        database = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in names}

    # There ratios of operators are 0, group ids empty, absent members left out; paths are as given.
    different = {"synchronization_time_ratio", "wait_time_ratio", "profilePath", "rank_set", "group_id"}

    def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
        kept = [value for name, value in row.items() if name not in different]
        return tuple(round(float(value), 6) if isinstance(value, int | float) else value for value in kept)

    ours = tables(tmp_path / "cluster_analysis_output" / "cluster_analysis.db")
    theirs = tables(
        DATA / "ascend" / "expected" / "db_level1" / "cluster_analysis_output" / "cluster_analysis.db"
    )
    assert ours.keys() == theirs.keys()
    for name, rows in theirs.items():
        assert [list(row) for row in ours[name][:1]] == [list(row) for row in rows[:1]]
        assert {comparable(row) for row in rows} <= {comparable(row) for row in ours[name]}, name
    totals = [row for row in theirs["ClusterCommunicationTime"] if row["hccl_op_name"] == "Total Op Info"]
    ratios = [(row["rank_id"], row["wait_time_ratio"], row["synchronization_time_ratio"]) for row in totals]
    assert ratios == [(0, 0.4807, 0.4688), (1, 0.4885, 0.4763)]
    ours_by_rank = {
        row["rank_id"]: row for row in ours["ClusterCommunicationTime"] if "Total" in row["hccl_op_name"]
    }
    for rank, waiting, synchronization in ratios:
        assert ours_by_rank[rank]["wait_time_ratio"] == waiting
        assert ours_by_rank[rank]["synchronization_time_ratio"] == synchronization
    (group,) = ours["CommunicationGroupMapping"]
    assert group["rank_set"] == "(0,1,2,3,4,5,6,7)" and group["group_id"].startswith("90.91.105.46%")
    # Of the eight ranks only two have profiles, and both waited for the same absent one.
    (slow,) = report.data["slow_ranks"]
    assert (slow["rank"], slow["confidence"]) == (6, "medium")
    assert "88.354" in slow["evidence"] or "88.4" in slow["evidence"]


# Span, idle (without copies), compute, communication, overlap %; and the time waited, in us.
DLRM = [
    (13009, 6419, 1034, 5798, 4.50, 5580),
    (18749, 6428, 1246, 11336, 2.47, 11125),
    (11350, 7046, 1068, 3492, 7.88, 3280),
    (18853, 8145, 1240, 9774, 3.31, 9571),
    (16589, 8887, 1126, 6587, 0.56, 6370),
    (16392, 9121, 1041, 6251, 0.64, 6041),
    (11410, 7051, 1051, 3558, 7.56, 3342),
    (10967, 8308, 1059, 1746, 9.51, 1534),
]


@needs_data
def test_real_kineto_numbers_are_those_of_the_existing_tool(tmp_path: Path) -> None:
    report = analyze.cluster(DATA / "kineto" / "dlrm_8_ranks", "all", tmp_path)
    assert len(report.data["ranks"]) == len(DLRM)
    for rank, (span, idle, compute, communication, overlap, waited) in zip(
        report.data["ranks"], DLRM, strict=True
    ):
        whole = rank["whole"]
        assert whole["end_ns"] - whole["begin_ns"] == span * 1000
        assert (whole["computing_us"], whole["communication_us"]) == (compute, communication)
        # Here copies that nothing hides are part of what is free, there they are busy.
        assert whole["free_us"] - whole["copies_us"] == pytest.approx(idle)
        assert whole["overlapped_us"] / whole["communication_us"] * 100 == pytest.approx(overlap, abs=0.005)
        assert rank["waiting"]["waited_ms"] * 1000 == pytest.approx(waited)
    assert [rank["waiting"]["times_last"] for rank in report.data["ranks"]] == [0, 0, 0, 0, 1, 2, 0, 5]


@needs_data
def test_the_slow_rank_of_a_real_run_on_cpus(tmp_path: Path) -> None:
    wanted = ([[267786]], [[131584]])
    for rank in range(4):
        trace = json.loads((DATA / "kineto" / "gloo_ddp_4_ranks" / f"rank{rank}.json").read_text())
        trace["traceEvents"] = [
            e
            for e in trace["traceEvents"]
            if not e["name"].startswith("gloo:") or e.get("args", {}).get("Input Dims") in wanted
        ]
        write(tmp_path / "p" / f"rank{rank}.json", trace)
    report = analyzed(tmp_path / "p")
    waited = [rank["waiting"]["waited_ms"] for rank in report.data["ranks"]]
    assert waited == pytest.approx([191.7, 230.6, 193.1, 0], abs=0.05)
    assert [rank["waiting"]["times_last"] for rank in report.data["ranks"]] == [0, 0, 0, 6]
    (slow,) = report.data["slow_ranks"]
    assert slow["rank"] == 3 and "'slow'" in slow["cause"]
    everything = analyze.cluster(DATA / "kineto" / "gloo_ddp_4_ranks", "slow_rank", tmp_path / "all")
    assert [slow["rank"] for slow in everything.data["slow_ranks"]] == [3]


@needs_data
def test_a_sampled_trace_is_paired_only_where_times_allow(tmp_path: Path) -> None:
    report = analyze.cluster(DATA / "kineto" / "trace_filter_2_of_128_ranks", "slow_rank", tmp_path)
    assert report.data["matched_calls"] == 4
    assert len(report.data["missing_ranks"]) == 126
    assert report.data["slow_ranks"] == []


SLOW_PROGRAM = """
import os
import time
from array import array
from collective_ops import allreduce, init_hccl

init_hccl()
rank = int(os.environ["RANK"])
numbers = array("f", [1.0] * 4096)
for _ in range(8):
    if rank == 2:
        time.sleep(0.05)
    allreduce(numbers, op="avg")
"""


def recorded(folder: Path) -> Path:
    """The trace of a job of four ranks, of which one sleeps before every call."""
    folder.mkdir()
    shared = {"WORLD_SIZE": "4", "COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(folder)}
    shared["COLLECTIVE_OPS_JOB_ID"] = f"analyze-{os.getpid()}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SLOW_PROGRAM],
            env={**os.environ, **shared, "RANK": str(rank), "DEVICE_ID": str(rank)},
        )
        for rank in range(4)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0, 0]
    return folder / "comm_trace.json"


def test_our_own_recording_names_the_slow_rank(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "traces")
    report = analyzed(trace.parent)
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1, 2, 3]
    assert report.data["matched_calls"] == 8
    slow = report.data["slow_ranks"][0]
    assert slow["rank"] == 2 and slow["late_ms"] > 8 * 25
    assert {row["OpType"] for row in rows_of(report, "hccl_sum.csv")} == {"allreduce"}
    # Without the half of the ranks, the slow one among them, the others still know for whom they waited.
    for removed in ([2, 3], [1, 3]):
        content = json.loads(trace.read_text())
        kept = [event for event in content["traceEvents"] if event.get("pid") not in removed]
        content["traceEvents"] = kept
        about = content["collective_ops"]
        about["missing_ranks"] = removed
        about["ranks"] = [each for each in about["ranks"] if each["rank"] not in removed]
        folder = tmp_path / f"without_{removed[0]}"
        folder.mkdir()
        (folder / "comm_trace.json").write_text(json.dumps(content))
        report = analyzed(folder)
        assert report.data["missing_ranks"] == removed
        assert [each["rank"] for each in report.data["slow_ranks"]] == [2]
