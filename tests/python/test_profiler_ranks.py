"""Profiles of several ranks: who is recorded, who waited for whom, and that the analysis tools, ours and
msprof-analyze, find in them what was measured."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from collective_ops import analyze  # noqa: E402
from made_up_profiles import rows_of  # noqa: E402
from profiled_runs import ns, output, parts_by_sweep, record, record_delayed, spans, table  # noqa: E402
from rank_pool import RankPool  # noqa: E402

MSPROF = Path(__file__).resolve().parents[2] / "build" / "msprof" / "bin" / "msprof-analyze"
EXAMPLE = (
    "--profile-step-start 10 --profile-step-end 15 --profile-level level2 --profile-ranks 0,1 "
    "--profile-with-cpu --profile-with-memory"
).split()
EXAMPLE_OF_ALL = "--profile-step-start 1 --profile-step-end 3 --profile-level level2".split()
LATE_S = 0.3


def collectives(directory: str | Path, step: int) -> dict[str, Any]:
    found = json.loads(output(directory, "communication.json").read_text())[f"step{step}"]["collective"]
    return {name: part for name, part in found.items() if name != "Total Op Info"}


def times(part: dict[str, Any]) -> dict[str, float]:
    return part["Communication Time Info"]


@pytest.fixture(scope="module")
def example(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("example")
    told = rank_pool.run(record, 2, (str(root), EXAMPLE, 17))
    assert [one["recorded"] for one in told] == [[10, 11, 12, 13, 14]] * 2
    assert all(one["failure"] == "" for one in told)
    return root


@pytest.fixture(scope="module")
def directories(example: Path) -> list[Path]:
    (first,), (second,) = (list((example / str(rank)).iterdir()) for rank in (0, 1))
    return [first, second]


def test_the_example_records_steps_10_to_14_of_both_ranks(directories: list[Path]) -> None:
    for rank, directory in enumerate(directories):
        assert (directory / f"profiler_info_{rank}.json").exists()
        rows = table(directory, "step_trace_time.csv")
        assert [row["Step"] for row in rows] == ["10", "11", "12", "13", "14"]
        swept = parts_by_sweep(directory)
        for row in rows:
            for part in ("Computing", "Communication(Not Overlapped)", "Overlapped", "Free"):
                assert ns(row[part]) == swept[row["Step"]][part]
            assert ns(row["Communication"]) > 0
        assert len(collectives(directory, 10)) == 4  # one call per parameter


def test_ranks_name_a_call_alike_and_belong_to_one_run(directories: list[Path]) -> None:
    infos = [json.loads(next(d.glob("profiler_info*.json")).read_text()) for d in directories]
    assert infos[0]["collective_ops"]["run"] == infos[1]["collective_ops"]["run"]
    assert [info["rank_id"] for info in infos] == [0, 1]
    for step in range(10, 15):
        assert collectives(directories[0], step).keys() == collectives(directories[1], step).keys()
    groups = [
        json.loads((d / "profiler_metadata.json").read_text())["parallel_group_info"] for d in directories
    ]
    assert groups[0].keys() == groups[1].keys()
    (group,) = groups[1].values()
    assert group == {"group_name": "default_group", "group_rank": 1, "global_ranks": [0, 1]}


def test_a_calls_parts_are_its_length(directories: list[Path]) -> None:
    for directory in directories:
        calls = {
            name: end - begin
            for lane, name, begin, end, _ in spans(directory)
            if lane == "HCCL" and name.startswith("hcom")
        }
        for step in range(10, 15):
            for key, part in collectives(directory, step).items():
                values = times(part)
                elapse = round(values["Elapse Time(ms)"] * 1e6)
                assert elapse == calls[key.split("@")[0]]
                parts = ("Transit Time(ms)", "Wait Time(ms)", "Idle Time(ms)")
                assert elapse == sum(round(values[name] * 1e6) for name in parts)
                assert values["Synchronization Time(ms)"] <= values["Wait Time(ms)"]
                links = part["Communication Bandwidth Info"]
                assert links["HCCS"]["Transit Size(MB)"] == links["SDMA"]["Transit Size(MB)"] > 0


def test_our_analysis_finds_the_same_sums(example: Path, directories: list[Path], tmp_path: Path) -> None:
    report = analyze.cluster(example, "all", tmp_path)
    assert report.data["missing_ranks"] == [] and not report.data["partial"]
    assert report.data["matched_calls"] == 5 * 4
    rows = {(r["Step"], r["Index"]): r for r in rows_of(report, "cluster_step_trace_time.csv")}
    for rank, directory in enumerate(directories):
        for row in table(directory, "step_trace_time.csv"):
            for column in row.keys() - {"Step"}:
                assert ns(rows[row["Step"], str(rank)][column]) == ns(row[column]), column
    merged = json.loads((tmp_path / "cluster_analysis_output" / "cluster_communication.json").read_text())
    for name, ranks in merged["(0, 1)"]["step12"].items():
        if not name.startswith("Total"):
            for rank, directory in enumerate(directories):
                assert times(ranks[str(rank)]) == pytest.approx(times(collectives(directory, 12)[name]))


@pytest.mark.skipif(not MSPROF.exists(), reason="no msprof-analyze in build/msprof: make test-msprof")
def test_the_existing_tool_runs_over_them(example: Path, directories: list[Path], tmp_path: Path) -> None:
    command = [str(MSPROF), "cluster", "-m", "all", "-d", str(example), "-o", str(tmp_path), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "[ERROR]" not in said, said[-3000:]
    assert "cannot be mapped" not in said
    result = tmp_path / "cluster_analysis_output"
    with (result / "cluster_step_trace_time.csv").open(newline="") as file:
        rows = {(r["Step"], r["Index"]): r for r in csv.DictReader(file)}
    for rank, directory in enumerate(directories):
        for row in table(directory, "step_trace_time.csv"):
            for column in row.keys() - {"Step"}:
                assert float(rows[row["Step"], str(rank)][column]) == float(row[column]), column
    theirs = json.loads((result / "cluster_communication.json").read_text())["(0, 1)"]
    for step in range(10, 15):
        for name, ranks in theirs[f"step{step}"].items():
            if not name.startswith("Total"):
                for rank, directory in enumerate(directories):
                    ours = times(collectives(directory, step)[name])
                    for figure in ("Elapse Time(ms)", "Wait Time(ms)", "Transit Time(ms)"):
                        assert times(ranks[str(rank)])[figure] == pytest.approx(ours[figure], abs=1e-9)


# Of its recipes those whose data exist on CPUs, and a table that each makes.
RECIPES = {
    "cann_api_sum": "CannApiSum",
    "compute_op_sum": "ComputeOpAllRankStats",
    "hccl_sum": "HcclAllRankStats",
    "free_analysis": "FreeAnalysis",
    "communication_bottleneck": "CommunicationBottleneck",
    "cluster_time_summary": "ClusterTimeSummary",
    "communication_group_map": "CommunicationGroupMapping",
    "communication_time_sum": "ClusterCommunicationTime",
    "communication_matrix_sum": "ClusterCommunicationMatrix",
}


def copies(_step: int) -> None:
    torch.ones(1000).clone()


@pytest.fixture(scope="module")
def databases(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("databases")
    told = rank_pool.run(record, 2, (str(root), [*EXAMPLE, "--profile-export-type", "db"], 16, copies))
    assert [one["recorded"] for one in told] == [[10, 11, 12, 13, 14]] * 2
    return root


@pytest.mark.skipif(not MSPROF.exists(), reason="no msprof-analyze in build/msprof: make test-msprof")
def test_the_existing_tool_finds_the_same_in_databases(databases: Path, tmp_path: Path) -> None:
    command = [str(MSPROF), "cluster", "-m", "all", "-d", str(databases), "-o", str(tmp_path), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "[ERROR]" not in said, said[-3000:]
    base = sqlite3.connect(tmp_path / "cluster_analysis_output" / "cluster_analysis.db")
    columns = "computing, communication_not_overlapped, overlapped, communication, free, stage, bubble"
    for rank in (0, 1):
        own = sqlite3.connect(next((databases / str(rank)).rglob("analysis.db")))
        expected = own.execute(f"SELECT step, {columns} FROM StepTraceTime ORDER BY step").fetchall()
        table_of_ranks = "ClusterStepTraceTime WHERE type = 'rank' AND \"index\" = ? ORDER BY step"
        assert (
            base.execute(f"SELECT step, {columns} FROM {table_of_ranks}", (str(rank),)).fetchall() == expected
            and len(expected) == 5
        )
        figures, each = "count(*), sum(transit_time), sum(wait_time)", "hccl_op_name NOT LIKE 'Total%'"
        ours = own.execute(f"SELECT {figures}, sum(elapse_time) FROM CommAnalyzerTime WHERE {each}")
        query = (
            f"SELECT {figures}, sum(elapsed_time) FROM ClusterCommunicationTime WHERE {each} AND rank_id = ?"
        )
        (theirs,) = base.execute(query, (rank,))
        assert theirs == pytest.approx(ours.fetchone(), rel=1e-9) and theirs[0] == 5 * 4


@pytest.mark.skipif(not MSPROF.exists(), reason="no msprof-analyze in build/msprof: make test-msprof")
@pytest.mark.parametrize("mode", RECIPES)
def test_recipes_of_the_existing_tool_run(databases: Path, tmp_path: Path, mode: str) -> None:
    command = [str(MSPROF), "cluster", "-m", mode, "-d", str(databases), "-o", str(tmp_path), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "[ERROR]" not in said, said[-3000:]
    base = sqlite3.connect(tmp_path / "cluster_analysis_output" / "cluster_analysis.db")
    (rows,) = base.execute(f"SELECT count(*) FROM {RECIPES[mode]}").fetchone()
    assert rows > 0
    if mode == "cluster_time_summary":
        (memory,) = base.execute("SELECT min(memory) FROM ClusterTimeSummary").fetchone()
        assert memory > 0
        for rank in (0, 1):
            own = sqlite3.connect(next((databases / str(rank)).rglob("analysis.db")))
            columns = "computing, communication FROM StepTraceTime ORDER BY step"
            theirs = "computation, communication FROM ClusterTimeSummary WHERE rank = ? ORDER BY step"
            expected = own.execute(f"SELECT {columns}").fetchall()
            found = base.execute(f"SELECT {theirs}", (rank,)).fetchall()
            assert [pytest.approx(row) for row in expected] == found


def test_only_the_selected_rank_records(rank_pool: RankPool, tmp_path: Path) -> None:
    flags = ["--profile-step-start", "1", "--profile-step-end", "2", "--profile-ranks", "1"]
    told = rank_pool.run(record, 2, (str(tmp_path), flags, 3))
    assert told[0]["directory"] is None and told[1]["recorded"] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("how", ["compute", "call"])
def test_a_late_rank_appears_as_the_waiting_of_the_other(
    rank_pool: RankPool, tmp_path: Path, how: str
) -> None:
    flags = ["--profile-step-start", "1", "--profile-step-end", "9", "--profile-level", "level2"]
    told = rank_pool.run(record_delayed, 2, (str(tmp_path), flags, 9, 1, LATE_S, how))
    waits, own_waits, drawn, truths = [], [], [], []
    lanes = [span for span in spans(told[0]["directory"]) if span[0] == "HCCL"]
    for step in range(1, 9):
        name, first = next(iter(collectives(told[0]["directory"], step).items()))
        late = times(collectives(told[1]["directory"], step)[name])
        values = times(first)
        truths.append((late["Start Timestamp(us)"] - values["Start Timestamp(us)"]) / 1e3)
        waits.append(values["Wait Time(ms)"])
        own_waits.append(late["Wait Time(ms)"])
        (call,) = [span for span in lanes if span[1] == name.split("@")[0]]
        inside = [s for s in lanes if s[1] == "Notify_Wait" and call[2] <= s[2] and s[3] <= call[3]]
        assert {span[4]["dst rank"] for span in inside} == {1}
        drawn.append(sum(end - begin for _, _, begin, end, _ in inside) / 1e6)
    # Known: how late; measured by clocks: how much later than the other; by the communicator: the wait.
    assert statistics.median(waits) == pytest.approx(statistics.median(truths), rel=0.05)
    assert statistics.median(waits) == pytest.approx(LATE_S * 1e3, rel=0.05)
    assert statistics.median(own_waits) < 0.05 * LATE_S * 1e3
    assert statistics.median(drawn) == pytest.approx(statistics.median(waits), rel=0.01)
    report = analyze.cluster(tmp_path)
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [1]
    computing = [
        statistics.median(ns(row["Computing"]) for row in table(one["directory"], "step_trace_time.csv"))
        / 1e6
        for one in told
    ]
    if how == "compute":
        assert computing[1] - computing[0] > 0.5 * LATE_S * 1e3
    else:
        assert computing[1] < 0.5 * LATE_S * 1e3


def test_the_steps_of_a_call_are_its_time(rank_pool: RankPool, tmp_path: Path) -> None:
    """At level2: one after the other, inside of the call; waiting per peer, and moving per peer, are their
    sums."""
    told = rank_pool.run(record, 3, (str(tmp_path), EXAMPLE_OF_ALL, 3))
    for rank, one in enumerate(told):
        found = spans(one["directory"])
        calls = [s for s in found if s[0] == "HCCL" and s[1].startswith("hcom_")]
        steps = sorted((s for s in found if s[0] == "HCCL" and "step" in s[4]), key=lambda s: s[2])
        assert len(calls) == 2 * 4
        assert all(a[3] <= b[2] for a, b in zip(steps, steps[1:], strict=False))
        for _, _, begin, end, arguments in calls:
            mine = [s for s in steps if begin <= s[2] and s[3] <= end]
            kinds = {s[4]["step"] for s in mine}
            assert kinds & {"copy", "reduce", "receive"} and kinds <= {
                "wait",
                "copy",
                "reduce",
                "send",
                "receive",
            }
            waited = sum(s[3] - s[2] for s in mine if s[4]["step"] == "wait")
            # Those below 0.2 us are no steps; a step has besides what lies around its wait.
            assert ns(arguments["waited(us)"]) <= waited + 200 * len(mine) + 1000
            assert sum(s[3] - s[2] for s in mine) <= end - begin
            assert {s[4]["dst rank"] for s in mine} - {"several", rank} <= {0, 1, 2} - {rank}
            moved_of_others = sum(s[4]["size(Byte)"] for s in mine if s[4]["dst rank"] != rank)
            assert moved_of_others > 0


def with_process_group(directory: str, backend: str) -> Any:
    """DDP, and a group of its own in the other order, with a backend of torch.distributed."""
    import argparse

    import torch.distributed as dist
    from collective_ops.profiler import add_profile_args, profile

    flags = [
        "--profile",
        "--profile-save-path",
        directory,
        "--profile-step-start",
        "2",
        "--profile-step-end",
        "4",
    ]
    args = add_profile_args(argparse.ArgumentParser()).parse_args(flags)
    dist.init_process_group(backend)
    pair = dist.new_group([0, 1])
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    with profile(args) as profiler:
        for _ in range(5):  # DDP makes its buckets anew in the second
            net(torch.ones(8, 16)).sum().backward()
            dist.all_reduce(torch.ones(100), group=pair)
            profiler.step()
    rank = int(os.environ["RANK"])
    dist.destroy_process_group()
    return rank, str(profiler.directory), profiler.failure


@pytest.mark.parametrize("backend", ["collective_ops", "gloo"])
def test_backends_of_torch_distributed(rank_pool: RankPool, tmp_path: Path, backend: str) -> None:
    if backend == "collective_ops":
        pytest.importorskip("collective_ops_torch._native")
    for rank, directory, failure in rank_pool.run(with_process_group, 2, (str(tmp_path), backend)):
        assert failure == ""
        calls = collectives(directory, 2)
        assert len(calls) == 2 and all("hcom_allReduce__" in name for name in calls)
        groups = json.loads((Path(directory) / "profiler_metadata.json").read_text())["parallel_group_info"]
        known = {tuple(group["global_ranks"]) for group in groups.values()}
        assert known == {(0, 1)}, rank
        assert len(groups) == (2 if backend == "collective_ops" else 1)
    report = analyze.cluster(tmp_path)
    assert report.data["missing_ranks"] == []
    assert report.data["matched_calls"] == 2 * 2


def record_much(directory: str) -> Any:
    """Many calls in recorded steps, and between them; what the recorder's files take on disk then."""
    import argparse

    import collective_ops
    from collective_ops import _core
    from collective_ops.profiler import add_profile_args, profile

    flags = ["--profile", "--profile-save-path", directory, "--profile-step-start", "3", "--profile-gather"]
    flags += ["--profiling_steps", "80", "--profile-step-end", "100", "--profile-level", "level0"]
    args = add_profile_args(argparse.ArgumentParser()).parse_args(flags)
    collective_ops.init_hccl()
    values = torch.ones(4)
    before = _core.recorded_files()
    sizes = []
    with profile(args) as profiler:
        for _ in range(160):
            for _ in range(200):
                collective_ops.allreduce(values)
            profiler.step()
            if files := _core.recorded_files():
                written = int.from_bytes(Path(files[0]).read_bytes()[64:72], "little")
                sizes.append((written, os.stat(files[0]).st_blocks * 512, files[0]))
    left = _core.recorded_files(), Path(sizes[-1][2]).exists()
    return profiler.recorded, profiler.failure, len(collectives(profiler.directory, 3)), before, sizes, left


def test_calls_are_recorded_in_the_range_alone_and_little_is_held(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    ranks = rank_pool.run(record_much, 2, (str(tmp_path),))
    for recorded, failure, calls, before, sizes, left in ranks:
        assert (recorded, failure, calls) == ([3, 83], "", 200)
        assert before == [] and left == ([], False)  # off outside of the range, and nothing stays
        assert len(sizes) == 97  # from the third step's end until the range is over
        written, taken, _ = sizes[-1]
        assert written >= 90 * 200 * 128
        assert taken < written // 2 + (2 << 20)  # given back as it is taken


def other_run_records(directory: str, trace: str) -> Any:
    """COLLECTIVE_OPS_TRACE records all; the profile takes its steps out of that, and leaves it whole."""
    os.environ["COLLECTIVE_OPS_TRACE"] = "1"
    os.environ["COLLECTIVE_OPS_TRACE_DIR"] = trace
    import collective_ops

    told = record(directory, ["--profile-step-start", "1", "--profile-step-end", "3"], 5)
    collective_ops.finalize()
    return told


def test_a_trace_of_the_whole_job_is_left_whole(rank_pool: RankPool, tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    told = rank_pool.run(other_run_records, 2, (str(tmp_path / "p"), str(tmp_path / "trace")))
    for one in told:
        assert one["failure"] == "" and [len(collectives(one["directory"], n)) for n in (1, 2)] == [4, 4]
    trace = json.loads((tmp_path / "trace" / "comm_trace.json").read_text())
    calls = [e for e in trace["traceEvents"] if e.get("cat") == "collective"]
    assert len(calls) == 2 * 5 * 4
