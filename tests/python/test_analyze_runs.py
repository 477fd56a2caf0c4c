"""Profiles of several runs in one folder, and of several hosts that are on one clock already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import BASE_NS, analyzed, ascend_rank, event, kineto, rows_of, training_job, write

START_US = 1_736_408_883_732_241.5


def own_rank(folder: Path, rank: int, run: str, started: str, **mark: Any) -> Path:
    """A rank's profile as our profiler leaves it."""
    times = {key: mark.pop(key) for key in ("start_us", "elapsed_ms", "gap_us") if key in mark}
    directory = ascend_rank(folder, rank, **times)
    info = {"config": {}, "rank_id": rank, "collective_ops": {"run": run, "started": started, **mark}}
    write(directory / f"profiler_info_{rank}.json", info)
    return directory


OLD, NEW = ("0ldrun", "2026-01-01 10:00:00 UTC"), ("abc1", "2026-01-01 11:00:00 UTC")


def two_runs(folder: Path) -> None:
    """Four ranks, an hour later two."""
    for rank in range(4):
        own_rank(folder / "old", rank, *OLD, world_size=4, host="host0", elapsed_ms=(10, 4))
    for rank in range(2):
        own_rank(
            folder / "new",
            rank,
            *NEW,
            world_size=2,
            host="host0",
            elapsed_ms=(3, 7),
            start_us=START_US + 3.6e9,
        )


def left_out(report: analyze.ClusterReport, folder: Path) -> dict[str, str]:
    return {str(Path(p["path"]).relative_to(folder)): p["problem"] for p in report.data["problems"]}


def test_a_newer_run_with_fewer_ranks_is_analysed_alone(tmp_path: Path) -> None:
    two_runs(tmp_path / "p")
    report = analyzed(tmp_path / "p")
    alone = analyze.cluster(tmp_path / "p" / "new", output=tmp_path / "alone")
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1]
    assert all("/new/" in rank["source"] for rank in report.data["ranks"])
    assert report.data["missing_ranks"] == [] and report.partial and not alone.partial
    assert {f.name: f.read_bytes() for f in report.files} == {f.name: f.read_bytes() for f in alone.files}
    problems = left_out(report, tmp_path / "p")
    assert sorted(problems) == [f"old/node_{100 + rank}_20250109075123456_ascend_pt" for rank in range(4)]
    for text in problems.values():
        assert f"is of the run {OLD[0]} (started {OLD[1]}), and was left out" in text
        assert f"of the run {NEW[0]} (started {NEW[1]}) is newer" in text
    old = analyze.cluster(tmp_path / "p" / "old", output=tmp_path / "old")
    assert len(old.data["ranks"]) == 4 and not old.partial


def test_shards_of_two_runs_give_the_newer_one(tmp_path: Path) -> None:
    two_runs(tmp_path / "p")
    shards = [tmp_path / "old.db", tmp_path / "new.db"]
    for shard in shards:
        analyze.shard(tmp_path / "p" / shard.stem, shard)
    whole = analyzed(tmp_path / "p")
    for order in (shards, shards[::-1]):
        merged = analyze.merge(order, output=tmp_path / "merged")
        assert merged.data["problems"] == whole.data["problems"] and len(whole.data["problems"]) == 4
        assert merged.data["ranks"] == whole.data["ranks"]


def test_a_run_that_left_nothing_hides_no_other(tmp_path: Path) -> None:
    """The newest run died before its first step ended."""
    two_runs(tmp_path / "p")
    for directory in (tmp_path / "p" / "new").iterdir():
        for file in (directory / "ASCEND_PROFILER_OUTPUT").iterdir():
            file.unlink()
    report = analyzed(tmp_path / "p")
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1, 2, 3]
    problems = left_out(report, tmp_path / "p")
    assert len(problems) == 2 and all("it holds no step and no call" in text for text in problems.values())


def job_at(folder: Path, ranks: int, seconds: float) -> None:
    training_job(folder, ranks=ranks, steps=12)
    for file in folder.iterdir():
        content = json.loads(file.read_text())
        write(file, {**content, "baseTimeNanoseconds": BASE_NS + round(seconds * 1e9)})


def test_older_runs_without_an_id_are_known_by_time(tmp_path: Path) -> None:
    job_at(tmp_path / "p" / "a", 4, 0)
    job_at(tmp_path / "p" / "b", 2, 60)
    report = analyzed(tmp_path / "p")
    assert [(r["rank"], Path(r["source"]).parent.name) for r in report.data["ranks"]] == [(0, "b"), (1, "b")]
    problems = left_out(report, tmp_path / "p")
    assert sorted(problems) == [f"a/rank{rank}.json" for rank in range(4)]
    assert all("is of rank" in problems[f"a/rank{rank}.json"] for rank in (0, 1))
    assert all("it is of an older run, and was left out" in problems[f"a/rank{rank}.json"] for rank in (2, 3))
    assert "b/rank" in problems["a/rank3.json"]


@pytest.mark.parametrize("apart", [0.0, 0.1])
def test_ranks_that_lie_apart_stay_one_run(tmp_path: Path, apart: float) -> None:
    """Another folder, a clock that is off, no overlap at all: nothing shows that these are two runs."""
    job_at(tmp_path / "all", 4, 0)
    job_at(tmp_path / "late", 4, apart)
    for rank in range(4):
        source = tmp_path / ("late" if rank > 1 else "all") / f"rank{rank}.json"
        target = tmp_path / "p" / f"host{rank // 2}" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    report = analyzed(tmp_path / "p")
    assert len(report.data["ranks"]) == 4 and report.data["problems"] == []


# ---- clocks ------------------------------------------------------------------------------------------


def gathered_job(folder: Path, error_ns: int, **aligned: Any) -> None:
    """Rank 1, on another host, is in each call 300 us after the others and gone 400 us before them: ends tell
    nothing of its clock, which was aligned when it was gathered."""
    clock = {"at_ns": 0, "offset_ns": 7, "drift": 0.0, "error_ns": error_ns, "calls": 9}
    for rank in range(3):
        other = rank == 1
        mark: dict[str, Any] = {"host": f"host{int(other)}", "world_size": 3}
        if other and aligned:
            mark |= {"clock": clock, **aligned}
        own_rank(
            folder,
            rank,
            *NEW,
            **mark,
            start_us=START_US + (300 if other else 0),
            elapsed_ms=[9.3 if other else 10.0] * 12,
            gap_us=800 if other else 100,
        )


def test_profiles_on_one_clock_are_not_aligned_again(tmp_path: Path) -> None:
    gathered_job(tmp_path / "p", 1500, clock_host="host0")
    report = analyzed(tmp_path / "p")
    assert report.data["matched_calls"] == 12
    (note,) = (note for note in report.data["notes"] if "clock" in note)
    assert note == "times of host host1 are on the clock of host0 since the profiles were gathered, to 1.5 us"
    gathered_job(tmp_path / "q", 1500)
    (note,) = (note for note in analyzed(tmp_path / "q").data["notes"] if "clock" in note)
    assert "clock of host host1 is -0.4" in note and "was aligned by the ends of 12 calls" in note


@pytest.mark.parametrize("error_ns, matched", [(0, 0), (60_000, 12)])
def test_what_a_clock_may_be_off_makes_no_call_impossible(
    tmp_path: Path, error_ns: int, matched: int
) -> None:
    """Rank 1 ends 100 us before rank 0 begins."""
    clock = {"at_ns": 0, "offset_ns": 7, "drift": 0.0, "error_ns": error_ns, "calls": 9}
    own_rank(tmp_path / "p", 0, *NEW, host="a", world_size=2, elapsed_ms=[10.0] * 12)
    mark: dict[str, Any] = {"host": "b", "world_size": 2, "clock": clock, "clock_host": "a"}
    own_rank(tmp_path / "p", 1, *NEW, **mark, elapsed_ms=[10.0] * 12, start_us=START_US - 10_100)
    report = analyzed(tmp_path / "p")
    assert report.data["matched_calls"] == matched
    assert any("pairings of calls cannot be" in note for note in report.data["notes"]) == (matched == 0)


# ---- what a backend's ranges are -----------------------------------------------------------------------


def test_ranges_of_a_backend_know_what_was_called(tmp_path: Path) -> None:
    """The range has its inputs' size alone; the record open in its thread as it begins has the rest."""
    for rank in range(4):
        pair = rank // 2
        events = []
        for k in range(12):
            # Of two calls of one size that are open at once the groups tell which is which.
            for group, members, tid, start in (("0", 4, 7, 1000 * k), (f"{1 + pair}", 2, 8, 1000 * k + 20)):
                late = 300 if rank == 3 and group == "0" else 0
                record = {"Collective name": "_allgather_base", "dtype": "Float", "Process Group Name": group}
                record |= {"In msg nelems": 500, "Out msg nelems": 500 * members, "Seq": k + 1}
                record |= {
                    "Input Dims": [[[500]], [], []],
                    "Input type": ["TensorList", "", ""],
                    "Rank": rank,
                }
                name = "collective_ops:_all_gather_base"
                inputs = {"Input Dims": [[500]], "Input type": ["float"]}
                events.append(event(name, "user_annotation", start + late + 2, 600 - late, tid=tid, **inputs))
                events.append(event("record_param_comms", "cpu_op", start + late, 20, tid=tid, **record))
        groups = [
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
            {"pg_name": f"{1 + pair}", "pg_desc": "tp", "ranks": [2 * pair, 2 * pair + 1]},
        ]
        info = {"backend": "collective_ops", "rank": rank, "world_size": 4, "pg_config": groups}
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, distributedInfo=info))
    report = analyzed(tmp_path / "p")
    assert report.data["matched_calls"] == 12 + 2 * 12
    (slow,) = report.data["slow_ranks"]
    assert slow["rank"] == 3 and slow["late_ms"] == pytest.approx(12 * 0.3, rel=0.05)
    rows = {row["group"]: row for row in rows_of(report, "communication.csv")}
    assert rows.keys() == {"default_pg", "tp"}
    for group, calls, members in (("default_pg", 12, 4), ("tp", 24, 2)):
        assert rows[group]["calls"] == str(calls)
        assert float(rows[group]["bytes"]) == calls * 500 * members * 4
