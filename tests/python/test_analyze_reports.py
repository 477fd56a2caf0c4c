"""What users of trace analysers ran into: each fault that they reported, and what is right instead."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
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


def test_a_moment_that_cannot_be_stretches_no_window(tmp_path: Path) -> None:
    events = [*KERNEL, event("k", "kernel", 9.2e15, 3, pid=0), event("k", "kernel", 20, 5, pid=0)]
    write(tmp_path / "p" / "rank0.json", kineto(events))
    report = analyzed(tmp_path / "p")
    (step,) = report.data["ranks"][0]["steps"]
    assert (step["computing_us"], step["free_us"]) == (10, 15)
    assert report.data["problems"][0]["problem"] == "1 broken events were skipped"


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
        ("collective_ops:all_reduce", "user_annotation"),
        ("ucc:allgather", "user_annotation"),
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


@pytest.mark.parametrize("name", ["data:loading", "nccl:all_reduce", "std::reduce(int)", "phase: reduce"])
def test_a_range_with_a_colon_is_no_call(tmp_path: Path, name: str) -> None:
    events = [event(name, "user_annotation", 0, 400), event("aten::mm", "cpu_op", 0, 100)]
    write(tmp_path / "p" / "rank0.json", kineto(events))
    assert analyzed(tmp_path / "p").data["ranks"][0]["calls"] == 0


# ---- text and database ---------------------------------------------------------------------------------


def test_text_and_database_give_the_same(tmp_path: Path) -> None:
    """Units differ between the two: us, ms and ns; what is read must not."""
    for rank in range(2):
        text = ascend_rank(tmp_path / "text", rank, links={"0-1": 9.5, "1-0": 7.25})
        output = text / "ASCEND_PROFILER_OUTPUT"
        header = "Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
        rows = "".join(
            f"7,mm,MatMul,AI_CORE,{1_736_408_883_732_241 + 10 * k}.25{k},{k + 1}.00{k}\n" for k in range(5)
        )
        (output / "kernel_details.csv").write_text(header + rows)
        as_database(text, tmp_path / "db" / text.name, rank)
    reports = [analyzed(tmp_path / kind) for kind in ("text", "db")]
    for name in ("cluster_step_trace_time.csv", "summary.csv", "operator_time.csv", "hccl_sum.csv"):
        first, second = (rows_of(report, name) for report in reports)
        assert first == second and len(first) > 0, name
    for name in ("cluster_communication.json", "cluster_communication_matrix.json", "cluster_timeline.json"):
        first, second = (
            next(file for file in report.files if file.name == name).read_bytes() for report in reports
        )
        assert first == second, name


TIMES = ["start_timestamp", "elapse_time", "transit_time", "wait_time", "synchronization_time", "idle_time"]
TRAFFIC = {
    "transit_size": "Transit Size(MB)",
    "transit_time": "Transit Time(ms)",
    "bandwidth": "Bandwidth(GB/s)",
}


def operators_of(path: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Columns that all tables have, and what the file says of each operator."""
    for step, parts in json.loads(path.read_text()).items():
        for key, content in parts["collective"].items():
            name, group = key.split("@")
            yield {"hccl_op_name": name, "group_name": group, "step": step, "type": "collective"}, content


def bandwidths_of(row: dict[str, str], content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for link, traffic in content["Communication Bandwidth Info"].items():
        figures = {column: traffic[name] for column, name in TRAFFIC.items()}
        if not figures["transit_size"]:
            continue
        figures |= {"transport_type": link, "large_packet_ratio": traffic["Large Packet Ratio"]}
        for size, (count, took) in (traffic["Size Distribution"] or {"0": [0, 0]}).items():
            yield {
                **row,
                **figures,
                "package_size": float(size),
                "count": count,
                "total_duration": took,
            }


def links_of(row: dict[str, str], content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for pair, traffic in content.items():
        source, destination = pair.split("-")
        figures = {column: traffic[name] for column, name in TRAFFIC.items()}
        figures |= {"src_rank": source, "dst_rank": destination, "op_name": ""}
        yield {**row, **figures, "transport_type": traffic["Transport Type"]}


def as_database(text: Path, directory: Path, rank: int) -> None:
    """The same rank as the profiler exports it to databases."""
    source = text / "ASCEND_PROFILER_OUTPUT"
    output = directory / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (directory / f"profiler_info_{rank}.json").write_bytes((text / f"profiler_info_{rank}.json").read_bytes())
    with sqlite3.connect(output / "analysis.db") as database:
        (step,) = csv.DictReader((source / "step_trace_time.csv").read_text().splitlines())
        names = [re.sub(r"[ (]", "_", name.lower().replace(")", "")) for name in step]
        insert(database, "StepTraceTime", [dict(zip(names, step.values(), strict=True))])
        operators = list(operators_of(source / "communication.json"))
        times = [
            {
                **row,
                **dict(
                    zip(TIMES, list(content["Communication Time Info"].values())[: len(TIMES)], strict=True)
                ),
            }
            for row, content in operators
        ]
        insert(database, "CommAnalyzerTime", times)
        rows = [each for row, content in operators for each in bandwidths_of(row, content)]
        insert(database, "CommAnalyzerBandwidth", rows)
        matrix = operators_of(source / "communication_matrix.json")
        rows = [each for row, content in matrix for each in links_of(row, content)]
        insert(database, "CommAnalyzerMatrix", rows)
    database.close()
    with sqlite3.connect(output / f"ascend_pytorch_profiler_{rank}.db") as database:
        tasks, computing = [], []
        for k, kernel in enumerate(csv.DictReader((source / "kernel_details.csv").read_text().splitlines())):
            begin = int(kernel["Start Time(us)"].replace(".", ""))
            took = round(float(kernel["Duration(us)"]) * 1000)
            tasks.append({"startNs": begin, "endNs": begin + took, "globalTaskId": k, "streamId": 7})
            computing.append({"name": 1, "globalTaskId": k, "taskType": 3, "opType": 2})
        insert(database, "TASK", tasks)
        insert(database, "COMPUTE_TASK_INFO", computing)
        strings = ["mm", "MatMul", "AI_CORE"]
        insert(database, "STRING_IDS", [{"id": i + 1, "value": value} for i, value in enumerate(strings)])
    database.close()


def insert(database: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    columns = ", ".join(rows[0])
    database.execute(f"CREATE TABLE {table} ({columns})")
    marks = ", ".join("?" * len(rows[0]))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", [list(row.values()) for row in rows])


# ---- names that are empty, quoted twice, or not there -----------------------------------------------------


@pytest.mark.parametrize("group", ["", "null"])
def test_a_group_without_a_name(tmp_path: Path, group: str) -> None:
    for rank in range(2):
        ascend_rank(tmp_path / "p", rank, group=group)
    report = analyzed(tmp_path / "p")
    assert report.data["matched_calls"] == 2
    (groups,) = (file for file in report.files if file.name == "communication_group.json")
    assert json.loads(groups.read_text())["collective"] == [[0, 1]]


def test_metadata_that_is_quoted_twice(tmp_path: Path) -> None:
    sizes = {"tensor_model_parallel_size": "2", "pipeline_model_parallel_size": 1, "world_size": 2}
    members = {"g": {"group_name": "tp", "global_ranks": [0, 1]}}
    for rank in range(2):
        metadata = {"distributed_args": sizes, "parallel_group_info": members}
        if rank == 1:
            metadata = {key: json.dumps(value) for key, value in metadata.items()}
        ascend_rank(tmp_path / "p", rank, metadata=metadata)
    rows = rows_of(analyzed(tmp_path / "p"), "cluster_step_trace_time.csv")
    assert [row["TP Index"] for row in rows if row["Type"] == "rank"] == ["0", "1"]


def test_an_operator_without_a_name(tmp_path: Path) -> None:
    for rank in range(2):
        directory = ascend_rank(tmp_path / "p", rank)
        path = directory / "ASCEND_PROFILER_OUTPUT" / "communication.json"
        if rank == 1:
            path.write_text(path.read_text().replace("hcom_allReduce__586_1_1@", "@"))
    report = analyzed(tmp_path / "p")
    assert report.data["matched_calls"] == 1
    assert [rank["calls"] for rank in report.data["ranks"]] == [2, 2]
    none = event("x", "kernel", 0, 5, pid=0)
    write(tmp_path / "q" / "rank0.json", kineto([{**none, "name": None}, {**none, "name": ""}]))
    assert analyzed(tmp_path / "q").data["ranks"][0]["steps"][0]["computing_us"] == 5


def test_nothing_is_left_for_a_mode_and_the_reason_is_told(tmp_path: Path) -> None:
    write(tmp_path / "p" / "rank0.json", kineto(KERNEL))
    with pytest.raises(ValueError, match="mode hccl_sum needs calls of collectives; none of the 1 profiles"):
        analyzed(tmp_path / "p", "hccl_sum")


# ---- long files, in any order ------------------------------------------------------------------------------

MEASURED = """
import json, resource, sys
from collective_ops import analyze
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
data = analyze.cluster(sys.argv[1], output=sys.argv[2]).data
print(json.dumps([peak() - before, data["ranks"][0]["steps"], data["matched_calls"]]))
"""


def test_a_long_file_in_any_order_needs_little_memory(tmp_path: Path) -> None:
    chance = random.Random(1)
    padding = "x" * 300  # as shapes and stacks of real events are, which nothing here needs
    events = [event(f"k{i % 40}", "kernel", 10.0 * i, 6, pid=0, pad=padding) for i in range(60_000)]
    found = []
    for name in ("sorted", "shuffled"):
        path = write(tmp_path / name / "rank0.json", kineto(events))
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, path.parent, tmp_path / "out"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        grown, steps, _ = json.loads(done.stdout)
        assert grown < path.stat().st_size * 0.6  # a fixed part, and 60 bytes or so of each event
        found.append(steps)
        chance.shuffle(events)
    assert found[0] == found[1] and found[0][0]["computing_us"] == 360_000


# ---- two runs in one folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("older, newer", [("a", "b"), ("b", "a")])
def test_of_two_runs_the_newer_is_taken_and_both_are_named(tmp_path: Path, older: str, newer: str) -> None:
    folder = tmp_path / "p"
    training_job(folder / older, ranks=2, steps=3)
    training_job(folder / newer, ranks=2, steps=5)
    for path in (folder / newer).iterdir():
        content = json.loads(path.read_text())
        write(path, {**content, "baseTimeNanoseconds": content["baseTimeNanoseconds"] + 3600 * 10**9})
    report = analyzed(folder)
    assert report.partial and report.data["matched_calls"] == 5
    assert [len(rank["steps"]) for rank in report.data["ranks"]] == [5, 5]
    for rank, problem in enumerate(report.data["problems"]):
        assert problem["path"] == str(folder / older / f"rank{rank}.json")
        assert str(folder / newer / f"rank{rank}.json") in problem["problem"]


def test_of_two_ascend_runs_without_times_the_name_tells_the_newer(tmp_path: Path) -> None:
    for time, computing in (("20250109075123456", "8000.5"), ("20250109085123456", "7000.5")):
        directory = ascend_rank(tmp_path / "made", 0)
        output = directory / "ASCEND_PROFILER_OUTPUT"
        (output / "communication.json").unlink()
        (output / "communication_matrix.json").unlink()
        steps = output / "step_trace_time.csv"
        steps.write_text(steps.read_text().replace("8000.5", computing))
        # The process's number stands first, and says nothing of time.
        process = 5 if computing == "7000.5" else 7
        target = tmp_path / "p" / f"node_{process}_{time}_ascend_pt"
        target.parent.mkdir(exist_ok=True)
        directory.rename(target)
    report = analyzed(tmp_path / "p")
    assert report.data["ranks"][0]["steps"][0]["computing_us"] == 7000.5


def test_an_empty_profile_of_ours_gets_advice_of_ours(tmp_path: Path) -> None:
    directory = tmp_path / "p" / "node_1_20250109075123456_ascend_pt"
    write(directory / "profiler_info_0.json", {"rank_id": 0, "collective_ops": {"run": "x"}})
    with pytest.raises(ValueError, match="collective-ops profile parse") as error:
        analyzed(tmp_path / "p")
    assert "torch_npu" not in str(error.value) and str(error.value).count(str(directory)) == 1
    write(directory / "profiler_info_0.json", {"rank_id": 0})
    with pytest.raises(ValueError, match="torch_npu"):
        analyzed(tmp_path / "p")
