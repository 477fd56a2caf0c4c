"""What the analysis reads: archives, lists, windows of a rank, dumps of the flight recorder, ranks
that only the caller knows."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze, cli
from made_up_profiles import analyzed, event, kineto, training_job, write


def packed(folder: Path, archive: Path) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for file in files:
                zipped.write(file, file.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as tarred:
            for file in files:
                tarred.add(file, str(file.relative_to(folder)))
    return archive


@pytest.mark.parametrize("name", ["日志 1.zip", "a.tar", "a.tar.gz"])
def test_an_archive_gives_what_its_files_give(tmp_path: Path, name: str) -> None:
    training_job(tmp_path / "p", ranks=3, late={1: 2000})
    plain = analyzed(tmp_path / "p").data
    (tmp_path / "packed").mkdir()
    archive = packed(tmp_path / "p", tmp_path / "packed" / name)
    for given in (archive, archive.parent):  # itself, and found in a directory
        report = analyze.cluster(given, output=tmp_path / "out")
        assert [slow["rank"] for slow in report.data["slow_ranks"]] == [1]
        assert [rank["steps"] for rank in report.data["ranks"]] == [rank["steps"] for rank in plain["ranks"]]
        assert report.data["ranks"][1]["source"] == f"{archive}/rank1.json"
        assert not report.partial
    assert [path.name for path in archive.parent.iterdir()] == [name]


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    one = json.dumps(kineto([event("gemm", "kernel", 0, 5, pid=0)]))
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
        zipped.writestr("../../escaped.json", one)
        zipped.writestr("good/rank0.json", one)
    report = analyze.cluster(tmp_path / "evil.zip", output=tmp_path / "out")
    assert len(report.data["ranks"]) == 1
    assert not list(tmp_path.rglob("escaped.json")) and not (tmp_path.parent / "escaped.json").exists()


def test_a_damaged_archive_is_told_and_the_rest_analysed(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=2, steps=3)
    (tmp_path / "p" / "rank2.zip").write_bytes(b"PK\x03\x04 no archive")
    report = analyzed(tmp_path / "p")
    assert report.partial and len(report.data["ranks"]) == 2
    assert [Path(p["path"]).name for p in report.data["problems"]] == ["rank2.zip"]


def test_a_list_of_files_and_its_place(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=3, steps=3)
    files = [tmp_path / "p" / f"rank{rank}.json" for rank in (0, 2)]
    report = analyze.cluster(files)
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 2]
    results = tmp_path / "p" / "cluster_analysis_output"
    assert all(file.is_relative_to(results) for file in report.files)
    training_job(tmp_path / "q", ranks=1, steps=3)
    with pytest.raises(ValueError, match="say with -o"):
        analyze.cluster([tmp_path / "p", tmp_path / "q" / "rank0.json"])


def test_ranks_that_only_the_caller_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    one = [event("gemm", "kernel", 0, 5, pid=0)]
    write(folder / "host_1.pt.trace.json", kineto(one, rank=None))
    write(folder / "rank5.json", kineto(one, rank=None))
    write(folder / "rank1.json", kineto(one, rank=1, world_size=3))
    command = ["analyze", "cluster", "-d", str(folder), "-o", str(tmp_path / "out"), "--json"]
    assert cli.main(command) == analyze.PARTIAL
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert "--rank FILE=N" in problems[0]["problem"]
    given = [f"--rank={folder / 'host_1.pt.trace.json'}=0", f"--rank={folder / 'rank5.json'}=2"]
    assert cli.main(command + given) == analyze.COMPLETE
    assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [0, 1, 2]
    # What a file says itself stands above all.
    cli.main([*command, *given, f"--rank={folder / 'rank1.json'}=7"])
    data = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1, 2]
    assert "its content says rank 1" in data["problems"][0]["problem"]
    assert cli.main([*command, "--rank=nowhere=1"]) == analyze.NOTHING
    assert "there is no file nowhere" in capsys.readouterr().err


def test_windows_of_one_rank_are_joined(tmp_path: Path) -> None:
    for rank in range(2):
        for window in (10, 5, 100):
            base, events = window * 1_000_000.0, []
            for step in range(4):
                begin = base + 2000 * step
                late = 300 if rank == 1 else 0
                name = f"ProfilerStep#{window + step}"
                events.append(event(name, "user_annotation", begin, 1900))
                events.append(event("cudaLaunchKernel", "cuda_runtime", begin, 1, correlation=step + 1))
                events.append(event("gemm", "kernel", begin, 1000 + late, pid=0, correlation=step + 1))
                events.append(
                    event("ncclDevKernel_AllReduce", "kernel", begin + 1000 + late, 500 - late, pid=0, tid=9)
                )
            content = kineto(events, rank=None, world_size=2)
            write(tmp_path / "p" / f"iteration_{window}" / f"rank{rank}_trace.json", content)
    (tmp_path / "p" / "iteration_10" / "rank1_trace.json").unlink()
    report = analyzed(tmp_path / "p")
    steps = [[step["step"] for step in rank["steps"]] for rank in report.data["ranks"]]
    assert steps[0] == [str(w + s) for w in (5, 10, 100) for s in range(4)]
    assert steps[1] == [str(w + s) for w in (5, 100) for s in range(4)]
    assert report.data["matched_calls"] == 8  # the window that one rank lacks pairs with nothing
    assert report.data["ranks"][0]["whole"]["computing_us"] == pytest.approx(12 * 1000)
    assert report.data["problems"] == [] and [slow["rank"] for slow in report.data["slow_ranks"]] == [1]


# ---- dumps of the flight recorder --------------------------------------------------------------------


def entry(sequence: int, name: str = "nccl:all_reduce", begin: int = 0, **other: Any) -> dict[str, Any]:
    start = 1_790_857_026_000_000_000 + sequence * 1_000_000 + begin
    return {
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": start - 500,
        "time_discovered_started_ns": start,
        "time_discovered_completed_ns": start + 400_000 - begin,
        "input_sizes": ((3, 4),),
        "output_sizes": ((3, 4),),
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed",
        "is_p2p": False,
        "retired": True,
        "frames": [{"name": "main", "filename": "train.py", "line": 1}],
        **other,
    }


def dump(entries: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    members = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return {"version": "2.10", "pg_config": {"0": members}, "pg_status": {}, "entries": entries}


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_flight_recorder_tells_who_did_not_come(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    for rank in range(4):
        entries = [entry(k, begin=200_000 * (rank == 2)) for k in range(1, 9)]
        if rank != 2:
            open_call = {"state": "started", "time_discovered_completed_ns": None}
            entries.append(entry(9, "nccl:broadcast", **open_call))
        content = dump(entries, 4)
        name = f"nccl_trace_rank_{rank}"
        if kind == "pickle":
            (folder / name).write_bytes(pickle.dumps(content))
        else:
            write(folder / f"{name}.json", content)
    report = analyzed(folder)
    assert [rank["rank"] for rank in report.data["ranks"]] == [0, 1, 2, 3]
    assert {rank["format"] for rank in report.data["ranks"]} == {"flight_recorder"}
    assert report.data["matched_calls"] == 8
    (note,) = [text for text in report.data["notes"] if "has not ended" in text]
    assert note.startswith(
        "broadcast, call 9 of group 0, has not ended on ranks 0,1,3; rank 2 never called it"
    )
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [2]
    if kind == "pickle":
        assert report.data["ranks"][0]["source"] == str(folder / "nccl_trace_rank_0")


@pytest.mark.parametrize(
    "change, text",
    [
        ({"name": "nccl:broadcast"}, "rank 0 calls all_reduce, rank 1 calls broadcast"),
        ({"input_sizes": ((3, 5),)}, "all_reduce: rank 0 has 12 elements, rank 1 has 15"),
        ({"input_dtypes": ["Half"]}, "all_reduce: rank 0 has elements of Float, rank 1 of Half"),
    ],
)
def test_flight_recorder_tells_what_differs(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    for rank in range(2):
        entries = [entry(1), entry(2, **(change if rank else {})), entry(3)]
        write(tmp_path / "p" / f"trace_rank_{rank}.json", dump(entries, 2))
    assert any(text in note for note in analyzed(tmp_path / "p").data["notes"])


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/collective_ops_was_here",)


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    training_job(folder, ranks=1, steps=2)
    (folder / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": [Runs()]}))
    (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps(dump([entry(1)], 3))[:-9])
    (folder / "nccl_trace_rank_3").write_bytes(b"\x80\x04no pickle")
    report = analyzed(folder)
    problems = {Path(p["path"]).name: p["problem"] for p in report.data["problems"]}
    assert problems.keys() == {"nccl_trace_rank_1", "nccl_trace_rank_2", "nccl_trace_rank_3"}
    assert "could run code" in problems["nccl_trace_rank_1"]
    assert not Path("/tmp/collective_ops_was_here").exists()
