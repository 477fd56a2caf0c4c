"""Profiles of several ranks: who is recorded, who waited for whom, and that the analysis tools, ours and
msprof-analyze, find in them what was measured."""

from __future__ import annotations

import csv
import json
import os
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


def test_only_the_selected_rank_records(rank_pool: RankPool, tmp_path: Path) -> None:
    flags = ["--profile-step-start", "1", "--profile-step-end", "2", "--profile-ranks", "1"]
    told = rank_pool.run(record, 2, (str(tmp_path), flags, 3))
    assert told[0]["directory"] is None and told[1]["recorded"] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_late_rank_appears_as_the_waiting_of_the_other(rank_pool: RankPool, tmp_path: Path) -> None:
    flags = ["--profile-step-start", "1", "--profile-step-end", "9", "--profile-level", "level2"]
    told = rank_pool.run(record_delayed, 2, (str(tmp_path), flags, 9, 1, LATE_S))
    waits, own_waits, planes, truths = [], [], [], []
    drawn = [span for span in spans(told[0]["directory"]) if span[1] == "Notify_Wait"]
    assert {span[4]["dst rank"] for span in drawn} == {1}
    for step in range(1, 9):
        name, first = next(iter(collectives(told[0]["directory"], step).items()))
        late = times(collectives(told[1]["directory"], step)[name])
        values = times(first)
        truths.append((late["Start Timestamp(us)"] - values["Start Timestamp(us)"]) / 1e3)
        waits.append(values["Wait Time(ms)"])
        own_waits.append(late["Wait Time(ms)"])
    begins = {span[2] for span in spans(told[0]["directory"]) if span[0] == "HCCL" and span[1][:4] == "hcom"}
    planes = sorted((end - begin for _, _, begin, end, _ in drawn if begin in begins), reverse=True)[:8]
    # Known: how late; measured by clocks: how much later than the other; by the communicator: the wait.
    assert statistics.median(waits) == pytest.approx(statistics.median(truths), rel=0.05)
    assert statistics.median(waits) == pytest.approx(LATE_S * 1e3, rel=0.05)
    assert statistics.median(own_waits) < 0.05 * LATE_S * 1e3
    assert statistics.median(planes) / 1e6 == pytest.approx(statistics.median(waits), rel=0.01)
    report = analyze.cluster(tmp_path)
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [1]


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
    """Many calls, of which few belong to the recorded steps; what the recorder's file takes on disk then."""
    import argparse

    import collective_ops
    from collective_ops.profiler import add_profile_args, profile

    flags = ["--profile", "--profile-save-path", directory, "--profile-step-start", "3", "--profile-gather"]
    args = add_profile_args(argparse.ArgumentParser()).parse_args(flags)
    collective_ops.init_hccl()
    values = torch.ones(4)
    with profile(args) as profiler:
        for _ in range(160):
            for _ in range(200):
                collective_ops.allreduce(values)
            profiler.step()
        (file,) = profiler._reader._own()
        taken = os.fstat(file.descriptor).st_blocks * 512
        shown = file.path.stat().st_size
        found = file.committed(), taken, shown
    return profiler.recorded, profiler.failure, len(collectives(profiler.directory, 4)), found


def test_the_recorders_own_file_stays_small(rank_pool: RankPool, tmp_path: Path) -> None:
    for recorded, failure, calls, (committed, taken, shown) in rank_pool.run(
        record_much, 2, (str(tmp_path),)
    ):
        assert (recorded, failure, calls) == ([3, 4], "", 200)
        assert committed >= 160 * 200 * 128  # one call with one peer each; gathering adds its messages
        assert taken < committed // 2 + (2 << 20)  # given back but for what lies behind the last look
        assert shown == 4096  # what is merged when the ranks leave: nothing
