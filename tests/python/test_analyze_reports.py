"""What users of trace analysers ran into: each fault that they reported, and what is right instead."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import analyzed, ascend_rank, event, kineto, rows_of, training_job, write

KERNEL = [event("gemm", "kernel", 0, 5, pid=0)]


def test_no_rank_anywhere_asks_for_it(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / "p" / name, kineto(KERNEL, rank=None))
    with pytest.raises(ValueError, match="say it with --rank FILE=N"):
        analyzed(tmp_path / "p")


def test_a_rank_with_nothing_but_metadata_is_told(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=4, steps=3)
    mark = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}
    write(tmp_path / "p" / "rank2.json", kineto([mark], rank=2, world_size=4))
    report = analyzed(tmp_path / "p")
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1, 3]
    (problem,) = report.data["problems"]
    assert problem["path"].endswith("rank2.json") and "no event" in problem["problem"]


def test_events_shorter_than_a_microsecond_keep_their_length(tmp_path: Path) -> None:
    events = [event("k", "kernel", 10 * i + 0.7, 0.2, pid=0) for i in range(50)]
    write(tmp_path / "p" / "rank0.json", kineto(events))
    report = analyzed(tmp_path / "p")
    (row,) = rows_of(report, "operator_time.csv")
    named = [float(row[name]) for name in ("count", "total_us", "average_us", "min_us", "max_us")]
    assert named == pytest.approx([50, 10, 0.2, 0.2, 0.2])
    assert report.data["ranks"][0]["steps"][0]["computing_us"] == pytest.approx(10)


def test_lengths_that_cannot_be_stay_out_of_sums(tmp_path: Path) -> None:
    events = [
        *KERNEL,
        event("k", "kernel", 10, 236 * 365 * 86400e6, pid=0),
        event("k", "kernel", 20, -5, pid=0),
    ]
    events.append({**event("k", "kernel", 30, 1, pid=0), "dur": float("nan")})
    write(tmp_path / "p" / "rank0.json", kineto(events))
    report = analyzed(tmp_path / "p")
    assert report.data["ranks"][0]["steps"][0]["computing_us"] == 5
    assert "3 events with a negative or impossible duration" in report.data["problems"][0]["problem"]


@pytest.mark.parametrize("marks", [[], ["3"], ["3", "4", "9"], ["x"]])
def test_step_marks_of_any_kind(tmp_path: Path, marks: list[str]) -> None:
    events = []
    for i, mark in enumerate(marks or [""]):
        if marks:
            events.append(event(f"ProfilerStep#{mark}", "user_annotation", 100 * i, 100))
        events.append(event("launch", "cuda_runtime", 100 * i + 1, 1, correlation=i + 1))
        events.append(event("gemm", "kernel", 100 * i + 5, 20, pid=0, correlation=i + 1))
    write(tmp_path / "p" / "rank0.json", kineto(events))
    steps = analyzed(tmp_path / "p").data["ranks"][0]["steps"]
    assert [step["step"] for step in steps] == (marks or [""])
    assert [step["computing_us"] for step in steps] == [20.0] * len(steps)


def test_ranks_with_different_steps(tmp_path: Path) -> None:
    for rank, count in enumerate((3, 4, 5)):
        training_job(tmp_path / str(count), ranks=3, steps=count)
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / str(count) / f"rank{rank}.json").rename(tmp_path / "p" / f"rank{rank}.json")
    report = analyzed(tmp_path / "p")
    assert [len(rank["steps"]) for rank in report.data["ranks"]] == [3, 4, 5]
    assert report.data["matched_calls"] >= 3
    assert len(rows_of(report, "summary.csv")) == 12


@pytest.mark.parametrize("without", [[0], [0, 1]])
def test_ascend_without_files_of_communication(tmp_path: Path, without: list[int]) -> None:
    sizes = {"tensor_model_parallel_size": "2", "pipeline_model_parallel_size": "1", "world_size": "2"}
    for rank in range(2):
        output = (
            ascend_rank(tmp_path / "p", rank, metadata={"distributed_args": sizes}) / "ASCEND_PROFILER_OUTPUT"
        )
        if rank in without:
            (output / "communication.json").unlink()
            (output / "communication_matrix.json").unlink()
    rows = rows_of(analyzed(tmp_path / "p"), "cluster_step_trace_time.csv")
    assert [row["Index"] for row in rows if row["Type"] == "rank"] == ["0", "1"]
    assert [row["TP Index"] for row in rows if row["Type"] == "rank"] == ["0", "1"]


def test_any_locale_and_relative_paths(tmp_path: Path) -> None:
    training_job(tmp_path / "a b" / "日志", ranks=2, steps=3)
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for place, folder in [(".", "a b/日志"), ("./a b/日志/", ".")]:
        command = [sys.executable, "-m", "collective_ops.cli", "analyze", "cluster", "-d", place]
        done = subprocess.run(
            command, cwd=tmp_path / folder, env=environment, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == analyze.COMPLETE, done.stderr.decode(errors="replace")
        assert (tmp_path / "a b" / "日志" / "cluster_analysis_output" / "summary.csv").exists()


def test_a_tree_with_everything_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    training_job(folder / "node0", ranks=2, steps=3)
    training_job(tmp_path / "q", ranks=4, steps=3)
    for rank in (2, 3):
        (folder / "deep" / "er").mkdir(parents=True, exist_ok=True)
        (tmp_path / "q" / f"rank{rank}.json").rename(folder / "deep" / "er" / f"rank{rank}.json")
    (tmp_path / "q" / "rank1.json").rename(folder / "deep" / "rank1.json")  # a second session
    write(folder / "readme.json", {"a": 1})
    (folder / "notes.txt").write_text("x")
    (folder / "loop").symlink_to(folder)
    (folder / "rank0_again.json").symlink_to(folder / "node0" / "rank0.json")
    report = analyzed(folder)
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1, 2, 3]
    named = [problem for problem in report.data["problems"] if "is of rank 1" in problem["problem"]]
    assert len(named) == 1 and "rank1.json" in named[0]["problem"]


@pytest.mark.parametrize("offset_us", [0, 250_000])
def test_a_shifted_and_drifting_clock_changes_no_verdict(tmp_path: Path, offset_us: float) -> None:
    for rank in range(4):
        events: list[dict[str, Any]] = []
        for k in range(40):
            end = 20_000.0 * k + 10_000
            start = end - 1800 + (800 if rank == 1 else 0)
            ahead = offset_us + 20e-6 * end if rank > 1 else 0
            arguments = {
                "Collective name": "allreduce",
                "In msg nelems": 64,
                "Process Group Name": "0",
                "Seq": k,
            }
            events.append(
                event(
                    "ncclDevKernel_AllReduce",
                    "kernel",
                    round(start + ahead, 3),
                    end - start,
                    pid=0,
                    **arguments,
                )
            )
        random.Random(rank).shuffle(events)  # and out of order
        host = f"host{rank // 2}"
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=4, host=host))
    report = analyzed(tmp_path / "p")
    (slow,) = report.data["slow_ranks"]
    assert slow["rank"] == 1 and slow["late_ms"] == pytest.approx(40 * 0.8, rel=0.05)
    assert any("clock of host host1" in note for note in report.data["notes"])


@pytest.mark.parametrize(
    "name, cat",
    [
        ("gloo:all_reduce", "user_annotation"),
        ("ncclDevKernel_AllReduce_Sum", "kernel"),
        ("ncclKernel_AllReduce_RING_LL", "kernel"),
        ("hcom_allReduce__586_0_1", "kernel"),
        ("void vllm::cross_device_reduce_1stage<float>", "Kernel"),
    ],
)
def test_communication_by_any_name_and_equal_processes(tmp_path: Path, name: str, cat: str) -> None:
    for rank in range(3):  # all are process 1, as in containers
        events = [event(name, cat, 1000 * k + 100 * (rank == 2), 400 - 100 * (rank == 2)) for k in range(12)]
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=3))
    report = analyzed(tmp_path / "p")
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [2]
    assert all(rank["calls"] == 12 for rank in report.data["ranks"])


# ---- slow ranks of many sizes ------------------------------------------------------------------------


@pytest.mark.parametrize("ranks, slow", [(2, 1), (3, 1), (8, 2), (32, 2), (64, 1), (64, 2)])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_slow_ranks_and_no_others(tmp_path: Path, ranks: int, slow: int, share: float) -> None:
    late = dict.fromkeys(range(ranks // 2, ranks // 2 + slow), 10_000 * share)
    training_job(tmp_path / "p", ranks=ranks, late=late, steps=20, noise_us=20)
    found = {
        each["rank"]: each["late_ms"] for each in analyzed(tmp_path / "p", "slow_rank").data["slow_ranks"]
    }
    assert found.keys() == late.keys()
    assert list(found.values()) == pytest.approx([20 * 10 * share] * slow, rel=0.15 if share < 0.05 else 0.05)


@pytest.mark.parametrize("ranks", [8, 64])
def test_half_of_the_profiles_name_the_same_rank(tmp_path: Path, ranks: int) -> None:
    training_job(tmp_path / "p", ranks=ranks, late={ranks - 2: 1000}, steps=16)
    for rank in range(1, ranks, 2):
        (tmp_path / "p" / f"rank{rank}.json").unlink()
    report = analyzed(tmp_path / "p", "slow_rank")
    assert [each["rank"] for each in report.data["slow_ranks"]] == [ranks - 2]
