"""timeline/cluster_timeline.json: the events of all ranks on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import BASE_NS, analyzed, ascend_rank, event, kineto, training_job, write


def timeline_of(report: analyze.ClusterReport) -> dict[str, Any]:
    (path,) = [file for file in report.files if file.parent.name == "timeline"]
    return json.loads(path.read_text())


def slices(timeline: dict[str, Any], rank: int, category: str) -> list[dict[str, Any]]:
    return [
        each
        for each in timeline["traceEvents"]
        if each["ph"] == "X" and each["pid"] == rank and each["cat"] == category
    ]


def names(timeline: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    return {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in timeline["traceEvents"]
        if each["ph"] == "M" and each["name"] == what
    }


def test_steps_calls_and_kernels_of_all_ranks(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=3, steps=4, late={1: 3000})
    report = analyzed(tmp_path / "p")
    timeline = timeline_of(report)
    assert timeline["otherData"] == {"events": 36, "left_out": 0, "longest_left_out_us": 0}
    assert set(names(timeline, "process_name").values()) == {f"rank {rank} on host0" for rank in range(3)}
    for rank in range(3):
        assert [each["name"] for each in slices(timeline, rank, "step")] == [f"step {i}" for i in range(4)]
        assert [each["name"] for each in slices(timeline, rank, "compute")] == ["gemm"] * 4
        calls = slices(timeline, rank, "communication")
        assert [each["args"]["latest_rank"] for each in calls] == [1] * 4
        waited = [each["args"]["waited_us"] for each in calls]
        assert waited == pytest.approx([0.0] * 4 if rank == 1 else [3000.0] * 4, abs=5)
    ends = [
        [each["ts"] + each["dur"] for each in slices(timeline, rank, "communication")] for rank in range(3)
    ]
    assert ends[0] == pytest.approx(ends[1], abs=0.002) and ends[0] == pytest.approx(ends[2], abs=0.002)
    assert timeline["baseTimeNanoseconds"] == BASE_NS + 1_000_000
    for row in timeline["traceEvents"]:
        assert row["ph"] != "X" or (row["ts"] >= 0 and row["dur"] >= 0)


def test_clocks_of_hosts_are_aligned(tmp_path: Path) -> None:
    for rank in range(4):
        ahead = 250_000.0 if rank > 1 else 0.0
        events = [
            event(
                "ncclDevKernel_AllReduce",
                "kernel",
                round(1000.0 * k + ahead + rank, 3),
                500 - rank,
                pid=0,
                **{"Collective name": "allreduce", "Process Group Name": "0", "Seq": k},
            )
            for k in range(20)
        ]
        write(
            tmp_path / "p" / f"rank{rank}.json",
            kineto(events, rank=rank, world_size=4, host=f"host{rank // 2}"),
        )
    timeline = timeline_of(analyzed(tmp_path / "p", "timeline"))
    for k in range(20):
        calls = [slices(timeline, rank, "communication")[k] for rank in range(4)]
        assert [each["args"]["Seq"] for each in calls] == [k] * 4
        assert [each["ts"] + each["dur"] for each in calls] == pytest.approx([1000.0 * k + 500] * 4, abs=0.01)


def test_what_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    # A job of so many ranks has room for 16 events of each.
    kernels = [event(f"k{i}", "kernel", 100.0 * i, 1 + i * 0.5, pid=0) for i in range(100)]
    write(tmp_path / "p" / "rank0.json", kineto(kernels, rank=0, world_size=10_000))
    report = analyzed(tmp_path / "p", "timeline")
    timeline = timeline_of(report)
    assert [each["name"] for each in slices(timeline, 0, "compute")] == [f"k{i}" for i in range(84, 100)]
    assert timeline["otherData"]["left_out"] == 84
    assert timeline["otherData"]["longest_left_out_us"] == 1 + 83 * 0.5
    assert any("the 17 longest of 101 events" in note and "0.043 ms" in note for note in report.data["notes"])


def test_events_that_overlap_lie_on_rows_of_their_own(tmp_path: Path) -> None:
    overlapping = [(0, 10), (2, 3), (5, 10), (20, 5)]  # the second inside the first, the third across its end
    events = [event("gloo:all_reduce", "user_annotation", start, took) for start, took in overlapping]
    events.append(event("aten::mm", "cpu_op", 1, 1, tid="日志"))
    write(tmp_path / "p" / "rank0.json", kineto(events, rank=0, host='a "host"'))
    timeline = timeline_of(analyzed(tmp_path / "p", "timeline"))
    calls = slices(timeline, 0, "communication")
    rows = [each["tid"] for each in calls]
    assert rows[0] == rows[1] == rows[3] != rows[2]
    threads = names(timeline, "thread_name")
    assert threads[0, rows[0]] == "communication" and threads[0, rows[2]] == "communication (2)"
    assert threads[0, slices(timeline, 0, "host")[0]["tid"]] == "1/日志"
    assert names(timeline, "process_name")[0, 0] == 'rank 0 on a "host"'


def test_ascend_profiles(tmp_path: Path) -> None:
    for rank in range(2):
        output = ascend_rank(tmp_path / "p", rank) / "ASCEND_PROFILER_OUTPUT"
        header = "Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
        rows = "7,mm,MatMul,AI_CORE,1736408883732241.250\t,1.5\n"
        rows += "7,h,hcom_allReduce_,HCCL,1736408883732241.250,9\n"
        (output / "kernel_details.csv").write_text(header + rows)
    timeline = timeline_of(analyzed(tmp_path / "p"))
    assert timeline["baseTimeNanoseconds"] == 1_736_408_883_732_241_250
    for rank in range(2):
        (kernel,) = slices(timeline, rank, "compute")
        assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("mm", 0, 1.5)
        calls = slices(timeline, rank, "communication")
        assert [(each["ts"], each["dur"]) for each in calls] == [(0.25, 10_000), (10_100.25, 4000)]


def test_a_profile_without_times_has_no_timeline(tmp_path: Path) -> None:
    output = ascend_rank(tmp_path / "p", 0) / "ASCEND_PROFILER_OUTPUT"
    (output / "communication.json").unlink()
    assert not any(file.parent.name == "timeline" for file in analyzed(tmp_path / "p").files)
    with pytest.raises(ValueError, match="mode timeline needs times of calls or kernels"):
        analyzed(tmp_path / "p", "timeline")
