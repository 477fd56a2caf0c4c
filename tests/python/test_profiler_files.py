"""What each flag puts into the files of one rank; and that a profile never stands in the way of training."""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from collective_ops.profiler import ProfileConfig, profile, recording  # noqa: E402
from collective_ops.profiler.entries import Chunk, begun_before  # noqa: E402
from collective_ops.profiler.model import group_hash  # noqa: E402
from profiled_runs import events, names, ns, output, parts_by_sweep, record, spans, table  # noqa: E402

GROUP = group_hash("collective_ops%0123_0")
RANGE = ("--profile-step-start", "1", "--profile-step-end", "3")
ALWAYS = {"step_trace_time.csv", "communication.json", "communication_matrix.json", "trace_view.json"}
LEVEL_1 = ALWAYS | {"kernel_details.csv", "op_statistic.csv"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def recorded(tmp_path: Path, *flags: str, steps: int = 4) -> Path:
    told = record(str(tmp_path), [*RANGE, *flags], steps)
    assert told["failure"] == "" and told["recorded"] == [1, 2]
    return Path(told["directory"])


def test_steps_begin_with_the_first_and_end_before_the_last(tmp_path: Path) -> None:
    directory = recorded(tmp_path)
    assert directory.parent == tmp_path / "0" and directory.name.endswith("_ascend_pt")
    assert [row["Step"] for row in table(directory, "step_trace_time.csv")] == ["1", "2"]
    marks = [name for _, name, *_ in spans(directory) if name.startswith("ProfilerStep#")]
    assert marks == ["ProfilerStep#1", "ProfilerStep#2"]
    assert names(directory) == LEVEL_1
    assert (directory / "analyse.done").exists()


def test_step_zero_and_a_single_step(tmp_path: Path) -> None:
    told = record(str(tmp_path), ["--profile-step-start", "0", "--profile-step-end", "1"], 2)
    assert told["recorded"] == [0]
    assert [row["Step"] for row in table(told["directory"], "step_trace_time.csv")] == ["0"]


def test_the_parts_add_up_to_the_nanosecond(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "--profile-with-cpu")
    swept = parts_by_sweep(directory)
    rows = table(directory, "step_trace_time.csv")
    assert len(rows) == len(swept) == 2
    lanes: dict[str, int] = {}
    for lane, name, a, b, _ in spans(directory):
        if lane == "Overlap Analysis":
            lanes[name] = lanes.get(name, 0) + b - a
    for row in rows:
        step = swept[row["Step"]]
        for part in ("Computing", "Communication(Not Overlapped)", "Overlapped", "Free"):
            assert ns(row[part]) == step[part], part
        assert step["Computing"] > 0
        whole = ns(row["Computing"]) + ns(row["Communication(Not Overlapped)"]) + ns(row["Free"])
        assert whole == step["step"] == ns(row["Stage"]) + ns(row["Bubble"])
    assert lanes["Computing"] == sum(ns(row["Computing"]) for row in rows)
    assert lanes["Free"] == sum(ns(row["Free"]) for row in rows)


@pytest.mark.parametrize(("level", "files"), [("level0", ALWAYS), ("level1", LEVEL_1), ("level2", LEVEL_1)])
def test_levels(tmp_path: Path, level: str, files: set[str]) -> None:
    directory = recorded(tmp_path, "--profile-level", level)
    assert names(directory) == files
    info = json.loads((directory / "profiler_info_0.json").read_text())
    assert info["config"]["experimental_config"]["_profiler_level"] == level.capitalize()
    kernels = [span for span in spans(directory) if span[0] == "Ascend Hardware"]
    assert bool(kernels) == (level != "level0")
    if level != "level0":
        shapes = {row["Input Shapes"] for row in table(directory, "kernel_details.csv")}
        assert ('"8,16;32,16;32"' in shapes) == (level == "level2")


def test_with_cpu_adds_the_hosts_operators(tmp_path: Path) -> None:
    without = recorded(tmp_path / "without")
    directory = recorded(tmp_path / "with", "--profile-with-cpu")
    assert names(directory) - names(without) == {"operator_details.csv", "api_statistic.csv"}
    host = {name for lane, name, *_ in spans(directory) if lane == "Python"}
    assert {"aten::linear", "aten::addmm"} <= host
    assert {name for lane, name, *_ in spans(without) if lane == "Python"} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }
    rows = [row for row in table(directory, "operator_details.csv") if row["Name"] == "aten::linear"]
    assert len(rows) == 2 * 2
    for row in rows:
        own, total = ns(row["Host Self Duration(us)"]), ns(row["Host Total Duration(us)"])
        assert 0 <= own < total and 0 < ns(row["Device Total Duration(us)"]) < total
        assert row["Input Shapes"] == "" and row["Call Stack"] == ""
    api = {row["API Name"]: row for row in table(directory, "api_statistic.csv")}
    assert api["aten::linear"]["Count"] == "4" and api["aten::linear"]["Level"] == "node"


def test_with_stack_adds_call_stacks(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "--profile-with-cpu", "--profile-with-stack")
    rows = [row for row in table(directory, "operator_details.csv") if row["Name"] == "aten::linear"]
    assert all("forward" in row["Call Stack"].split(";\n")[0] + row["Call Stack"] for row in rows)
    assert all("linear.py" in row["Call Stack"] for row in rows)


def test_record_shapes_adds_shapes(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "--profile-with-cpu", "--profile-record-shapes")
    rows = [row for row in table(directory, "operator_details.csv") if row["Name"] == "aten::linear"]
    assert {row["Input Shapes"] for row in rows} == {'"8,16;32,16;32"', '"8,32;4,32;4"'}


def test_with_memory_adds_memory(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "--profile-with-memory")
    assert names(directory) == LEVEL_1 | {"memory_record.csv", "operator_memory.csv"}
    record_rows = table(directory, "memory_record.csv")
    assert {row["Component"] for row in record_rows} == {"PTA", "APP"}
    assert sum(row["Component"] == "APP" for row in record_rows) == 2 * 2
    assert all(float(row["Total Reserved(MB)"]) > 1 for row in record_rows if row["Component"] == "APP")
    blocks = table(directory, "operator_memory.csv")
    # The output of the first layer: 8 rows of 32 float32.
    assert any(row["Name"] == "aten::addmm" and float(row["Size(KB)"]) == 1.0 for row in blocks)
    for row in blocks:
        if row["Allocation Time(us)"] and row["Release Time(us)"]:
            length = ns(row["Release Time(us)"]) - ns(row["Allocation Time(us)"])
            assert length == ns(row["Duration(us)"]) >= 0
    assert {e["name"] for e in events(directory) if e["ph"] == "C"} == {"NPU MEM"}


def test_an_interval_records_every_third_step(tmp_path: Path) -> None:
    flags = ["--profiling_steps", "3", "--profile-step-start", "1", "--profile-step-end", "8"]
    told = record(str(tmp_path), flags, 9)
    assert told["recorded"] == [1, 4, 7]
    assert [row["Step"] for row in table(told["directory"], "step_trace_time.csv")] == ["1", "4", "7"]


def test_a_size_limit_ends_recording_and_not_training(tmp_path: Path, caplog: Any) -> None:
    flags = ["--profile-step-start", "0", "--profile-step-end", "9", "--profile-max-size", "60K"]
    told = record(str(tmp_path), flags, 10)
    assert 1 <= len(told["recorded"]) < 9
    raw = sum(f.stat().st_size for f in (Path(told["directory"]) / "FRAMEWORK").glob("step_*"))
    assert raw <= 60 << 10
    assert "so 9 steps take more than --profile-max-size" in caplog.text
    assert "nothing more is recorded" in caplog.text
    assert len(table(told["directory"], "step_trace_time.csv")) == len(told["recorded"])


def test_a_loop_that_ends_early_leaves_what_it_recorded(tmp_path: Path, caplog: Any) -> None:
    told = record(str(tmp_path), ["--profile-step-start", "1", "--profile-step-end", "9"], 3)
    assert told["recorded"] == [1, 2]
    assert (
        "the loop ended after step 2, before --profile-step-end 9; recorded are steps 1 to 2" in caplog.text
    )
    assert [row["Step"] for row in table(told["directory"], "step_trace_time.csv")] == ["1", "2"]


def test_a_loop_that_never_gets_there_says_so(tmp_path: Path, caplog: Any) -> None:
    told = record(str(tmp_path), [], 3)
    assert told["recorded"] == []
    assert "nothing was recorded: the loop ended after step 2, and --profile-step-start is 10" in caplog.text


def test_an_error_of_the_program_passes_and_leaves_the_step(tmp_path: Path) -> None:
    def work(step: int) -> None:
        if step == 2:
            raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="the program's own"):
        record(str(tmp_path), ["--profile-step-start", "1", "--profile-step-end", "9"], 5, work)
    (directory,) = (tmp_path / "0").iterdir()
    assert [row["Step"] for row in table(directory, "step_trace_time.csv")] == ["1", "2"]


def test_a_failure_of_the_profiler_is_told_once_and_training_goes_on(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.profiler

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is full")

    steps: list[int] = []
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", refuse)
    told = record(str(tmp_path), [*RANGE], 5, steps.append)
    assert steps == list(range(5))
    assert told["failure"] == "ending a step: the disk is full" and told["recorded"] == []
    assert caplog.text.count("the disk is full") == 1
    with torch.profiler.profile():  # nothing of ours is left open
        pass


def test_odd_paths_and_worker_names(tmp_path: Path) -> None:
    root = tmp_path / "a b" / "日志"
    config = ProfileConfig(enable_profiling=True, profiling_dir=str(root), step_start=0, step_end=1)
    with profile(config, worker_name="team/worker 1") as profiler:
        torch.ones(4).sum()
        profiler.step()
    assert profiler.directory is not None and profiler.directory.name.startswith("team_worker_1_")
    assert len(table(profiler.directory, "step_trace_time.csv")) == 1


def test_two_runs_are_never_mixed(tmp_path: Path, caplog: Any) -> None:
    first = recorded(tmp_path)
    second = recorded(tmp_path)
    run = json.loads((second / "profiler_info_0.json").read_text())["collective_ops"]["run"]
    assert second.parent == tmp_path / f"run_{run}" / "0"
    assert "holds profiles of another run" in caplog.text and "--profile-clean" in caplog.text
    (tmp_path / "0" / "notes.txt").write_text("mine")
    foreign = tmp_path / "1" / "other_1_20260101000000000_ascend_pt"
    foreign.mkdir(parents=True)
    (foreign / "profiler_info_1.json").write_text('{"rank_id": 1}')
    third = recorded(tmp_path, "--profile-clean")
    assert third.parent == tmp_path / "0"
    assert not first.exists() and not second.exists()
    assert (tmp_path / "0" / "notes.txt").read_text() == "mine" and foreign.exists()


def test_ranks_that_are_not_selected_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    config = ProfileConfig(
        enable_profiling=True, profiling_dir=str(tmp_path / "p"), step_start=0, step_end=1, ranks=(0, 1)
    )
    with profile(config) as profiler:
        profiler.step()
    assert profiler.directory is None and not (tmp_path / "p").exists()


def test_without_the_flag_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with profile(ProfileConfig()) as profiler:
        profiler.step()
    assert list(tmp_path.iterdir()) == [] and profiler.directory is None


def test_the_trace_is_sound(tmp_path: Path) -> None:
    """Numbers and not text, small ids, arrows that stay in their thread, no bare control characters."""
    directory = recorded(tmp_path, "--profile-with-cpu", "--profile-level", "level2")
    found = events(directory)
    base = found[0]
    assert base["name"] == "baseTimeNanoseconds"
    assert abs(base["args"]["value"] - os.stat(directory).st_mtime_ns) < 3600 * 10**9
    starts = {e["id"]: e for e in found if e["ph"] == "s"}
    ends = {e["id"]: e for e in found if e["ph"] == "f"}
    assert starts and starts.keys() == ends.keys() and max(starts) < 2**31
    kernels = {e["args"]["Task Id"]: e for e in found if e["ph"] == "X" and "Task Id" in e["args"]}
    for number, end in ends.items():
        assert end["tid"] == kernels[number]["tid"] and starts[number]["ts"] == kernels[number]["ts"]
    raw = json.loads(output(directory, "trace_view.json").read_bytes())
    assert all(isinstance(e["ts"], int | float) and e["ts"] < 2**42 for e in raw if "ts" in e)


def test_a_call_that_ends_after_its_step_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began in step 1, and its record comes when step 2 has ended; one between the steps stays out."""
    begun: list[int] = []

    about = {"job": "0123", "world_size": 1, "world": ["default_group", [0]], "algorithms": ["ring"]}

    def entry(sequence: int, start: int, end: int) -> bytes:
        head = struct.pack("<HHIQIiBBBBBBHQQ", 1, 0, 96, sequence, 0, -1, 1, 10, 0, 1, 0, 0, 0xFFFF, 4, 16)
        return head + struct.pack("<qqqqqq", start, start, end, 0, 0, end - start)

    class Reader:
        was_on = True

        def __init__(self, *_: Any) -> None:
            self.data = [b""]

        def take(self) -> list[Chunk]:
            return [Chunk(about, self.data.pop())] if self.data else []

        def skip(self, before: int = 0) -> list[Chunk]:
            if len(begun) != 2:  # two calls end when step 1 has ended: before step 2 is recorded
                return []
            now = time.monotonic_ns()
            both = entry(7, begun[1], now) + entry(8, now - 1, now)
            return [Chunk(about, begun_before(both, before, {}))]

        start = close = lambda self: None
        lost = lambda self: 0  # noqa: E731

    monkeypatch.setattr(recording, "CallReader", Reader)
    told = record(str(tmp_path), RANGE, 4, lambda step: begun.append(time.monotonic_ns()))
    assert told["failure"] == ""
    content = json.loads(output(told["directory"], "communication.json").read_text())
    assert [name for name in content["step1"]["collective"]][:-1] == [
        f"hcom_allReduce__{GROUP[-3:]}_7_1@{GROUP}"
    ]
    assert content["step2"]["collective"] == {}
    row = table(told["directory"], "step_trace_time.csv")[0]
    assert ns(row["Communication"]) > 0


def test_metadata_hold_versions_and_host(tmp_path: Path) -> None:
    directory = recorded(tmp_path)
    metadata = json.loads((directory / "profiler_metadata.json").read_text())
    assert metadata["environment"]["torch"] == torch.__version__ and metadata["environment"]["host"]
    assert "distributed_args" not in metadata
    assert not any("SECRET" in name or "TOKEN" in name for name in metadata["ENV_VARIABLES"])


def test_a_logger_that_shows_nothing_is_no_fault(tmp_path: Path) -> None:
    logging.getLogger("collective_ops.profiler").setLevel(logging.CRITICAL)
    try:
        recorded(tmp_path)
    finally:
        logging.getLogger("collective_ops.profiler").setLevel(logging.NOTSET)


def test_level0_notes_activity_without_torch_profiler(tmp_path: Path) -> None:
    native = pytest.importorskip("collective_ops_torch._native")
    if not hasattr(native._torch, "start_activity"):
        pytest.skip("collective_ops_torch is older than this")
    directory = recorded(tmp_path, "--profile-level", "level0")
    raw = {path.name for path in (directory / "FRAMEWORK").iterdir()}
    assert {"activity_1.bin", "activity_2.bin"} <= raw
    assert not any(name.endswith(".pt.trace.json") for name in raw)
    for row in table(directory, "step_trace_time.csv"):
        assert ns(row["Computing"]) > 0 and ns(row["Free"]) > 0
        whole = ns(row["Computing"]) + ns(row["Communication(Not Overlapped)"]) + ns(row["Free"])
        assert whole == ns(row["Stage"]) + ns(row["Bubble"])
