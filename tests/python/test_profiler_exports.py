"""The db export, files made anew from raw data, profiles brought together, callbacks, exact numbers."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from collective_ops import cli
from collective_ops.profiler import ProfileConfig, intervals, kineto, outputs, profile, runs
from collective_ops.profiler.communication import microseconds
from collective_ops.profiler.model import Group, group_hash
from collective_ops.profiler.parts import kernels_of

torch = pytest.importorskip("torch")

from collective_ops import analyze  # noqa: E402
from made_up_profiles import rows_of  # noqa: E402
from profiled_runs import names, output, record, spans, table  # noqa: E402
from rank_pool import RankPool  # noqa: E402

FLAGS = ("--profile-step-start 1 --profile-step-end 3 --profile-level level2 --profile-with-cpu "
         "--profile-with-memory --profile-with-stack").split()  # fmt: skip


@pytest.fixture(scope="module")
def made(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks' profiles as text."""
    root = tmp_path_factory.mktemp("made")
    told = rank_pool.run(record, 2, (str(root), FLAGS, 4))
    assert [one["failure"] for one in told] == ["", ""]
    return root


def profile_of(root: Path, rank: int) -> Path:
    (directory,) = (root / str(rank)).iterdir()
    return directory


def as_database(made: Path, root: Path) -> Path:
    """The same recording, exported as db."""
    shutil.copytree(made, root)
    for rank in (0, 1):
        directory = profile_of(root, rank)
        shutil.rmtree(directory / runs.OUTPUT)
        path = directory / f"profiler_info_{rank}.json"
        info = json.loads(path.read_text())
        info[runs.MARK]["options"]["export_type"] = "db"
        path.write_text(json.dumps(info))
        assert outputs.write(directory) == []
        assert names(directory) == {f"ascend_pytorch_profiler_{rank}.db", "analysis.db"}
    return root


def test_text_and_db_say_the_same(made: Path, tmp_path: Path) -> None:
    database = as_database(made, tmp_path / "db")
    reports = [analyze.cluster(root, "all", tmp_path / f"out{i}") for i, root in enumerate((made, database))]
    left, right = (rows_of(report, "cluster_step_trace_time.csv") for report in reports)
    assert len(left) == 2 * 2 and len(left) == len(right)
    for text_row, db_row in zip(left, right, strict=True):
        for column in text_row.keys() - {"Type"}:
            assert float(text_row[column]) == pytest.approx(float(db_row[column]), abs=1e-3), column
    assert reports[0].data["matched_calls"] == reports[1].data["matched_calls"] == 2 * 4
    calls = [[rank["waiting"]["waited_ms"] for rank in report.data["ranks"]] for report in reports]
    assert calls[0] == pytest.approx(calls[1], abs=1e-3)


def test_the_databases_rows_belong_together(made: Path, tmp_path: Path) -> None:
    directory = profile_of(as_database(made, tmp_path / "db"), 0)
    base = sqlite3.connect(output(directory, "ascend_pytorch_profiler_0.db"))

    def one(query: str) -> Any:
        return base.execute(query).fetchone()[0]

    assert one("SELECT count(*) FROM STEP_TIME") == 2
    assert one("SELECT count(*) FROM COMMUNICATION_OP") == 2 * 4
    for info in ("COMPUTE_TASK_INFO", "COMMUNICATION_TASK_INFO"):
        assert one(f"SELECT count(*) FROM {info}") > 0
        assert (
            one(f"SELECT count(*) FROM {info} WHERE globalTaskId NOT IN (SELECT globalTaskId FROM TASK)") == 0
        )
    assert one("SELECT count(*) FROM TASK WHERE connectionId NOT IN (SELECT connectionId FROM CANN_API)") == 0
    assert one("SELECT count(*) FROM TASK WHERE endNs < startNs") == 0
    kernels = [span for span in spans(profile_of(made, 0)) if span[0] == "Ascend Hardware"]
    assert one("SELECT count(*) FROM COMPUTE_TASK_INFO") == len(kernels)
    total = one("SELECT sum(endNs - startNs) FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)")
    assert total == sum(end - begin for _, _, begin, end, _ in kernels)
    stacks = one("SELECT count(DISTINCT callchainId) FROM PYTORCH_API WHERE callchainId IS NOT NULL")
    assert (
        stacks > 0
        and one("SELECT count(*) FROM MEMORY_RECORD") > 0
        and one("SELECT count(*) FROM OP_MEMORY") > 0
    )
    assert "default_group" in one("SELECT value FROM META_DATA WHERE name = 'parallel_group_info'")


def test_a_job_that_died_is_parsed_from_what_it_left(made: Path, tmp_path: Path, capsys: Any) -> None:
    root = tmp_path / "left"
    shutil.copytree(made, root)
    directory = profile_of(root, 0)
    before = output(directory, "step_trace_time.csv").read_bytes()
    shutil.rmtree(directory / runs.OUTPUT)
    (directory / "analyse.done").unlink()
    assert cli.main(["profile", "parse", "-d", str(root)]) == 0
    assert output(directory, "step_trace_time.csv").read_bytes() == before
    trace = directory / "FRAMEWORK" / "step_2.pt.trace.json"
    trace.write_bytes(trace.read_bytes()[:1000])
    assert cli.main(["profile", "parse", "-d", str(directory)]) == 3
    assert "the trace of step 2 cannot be read" in capsys.readouterr().out
    assert [row["Step"] for row in table(directory, "step_trace_time.csv")] == ["1"]
    trace.with_name("step_1.pt.trace.json").unlink()
    assert cli.main(["profile", "parse", "-d", str(directory)]) == 1
    assert "no step can be used" in capsys.readouterr().err


def test_list_shows_runs_ranks_and_steps(made: Path, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["profile", "list", "-d", str(made)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["0", "1-2"], ["1", "1-2"]]
    assert cli.main(["profile", "list", "-d", str(tmp_path)]) == 1
    assert "no profile that collective-ops made" in capsys.readouterr().err


def gathered(folder: str, run: str = "") -> Any:
    """Each rank has its own folder, as on a host of its own."""
    import collective_ops
    from collective_ops.profiler import gather

    collective_ops.init_hccl()
    rank = collective_ops.rank()
    return gather.in_job(Path(folder) / f"host{rank}", rank, collective_ops.world_size(), run)


def test_gather_brings_all_ranks_to_one_host_once(rank_pool: RankPool, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "0", tmp_path / "host0" / "0")
    shutil.copytree(made / "1", tmp_path / "host1" / "deep" / "er" / "1")
    first = rank_pool.run(gathered, 2, (str(tmp_path),))[0]
    assert first.ranks == (0, 1) and first.problems == () and first.files > 10
    # One layout, however deep the profiles lay on the other host.
    source, target = tmp_path / "host1" / "deep" / "er" / "1", tmp_path / "host0" / "1"
    copied = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
    assert copied == sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    for name in copied:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    (target / copied[0]).write_bytes(b"cut off")
    (target / copied[1]).unlink()
    again = rank_pool.run(gathered, 2, (str(tmp_path),))[0]
    assert again.files == 2 and again.kept == first.kept + first.files - 2
    assert (target / copied[0]).read_bytes() == (source / copied[0]).read_bytes()
    assert analyze.cluster(tmp_path / "host0", "all", tmp_path / "out").data["missing_ranks"] == []


def as_another_run(profiles: Path, run: str, started: str) -> None:
    for path in profiles.rglob("profiler_info_*.json"):
        info = json.loads(path.read_text())
        info[runs.MARK] |= {"run": run, "started": started}
        path.write_text(json.dumps(info))


def test_gather_takes_one_run(rank_pool: RankPool, made: Path, tmp_path: Path, capsys: Any) -> None:
    """Both hosts hold profiles of an older run, too: these are named and stay where they are."""
    for host in (0, 1):
        shutil.copytree(made / str(host), tmp_path / f"host{host}" / str(host))
        shutil.copytree(made / str(host), tmp_path / f"host{host}" / "old" / str(host))
        as_another_run(tmp_path / f"host{host}" / "old", "feed", "2020-01-01 00:00:00 UTC")
    told = rank_pool.run(gathered, 2, (str(tmp_path),))[0]
    assert told.ranks == (0, 1) and told.other_runs == ("feed",) and told.run != "feed"
    found = runs.find_profiles(tmp_path / "host0")
    assert sorted((p.run, p.rank) for p in found) == sorted([(told.run, 0), (told.run, 1), ("feed", 0)])
    wanted = rank_pool.run(gathered, 2, (str(tmp_path), "feed"))[0]
    assert wanted.run == "feed" and wanted.ranks == (0, 1) and wanted.files > 10
    assert sorted(p.rank for p in runs.find_profiles(tmp_path / "host0" / "old")) == [0, 1]
    command = ["profile", "gather", "-d", str(tmp_path / "host0"), "-o", str(tmp_path / "out")]
    assert cli.main(command) == 0
    assert "other runs were left alone: feed" in capsys.readouterr().out
    assert {p.run for p in runs.find_profiles(tmp_path / "out")} == {told.run}
    assert cli.main([*command, "--run", "beef"]) == 1
    assert "no profile is of the run beef; there are" in capsys.readouterr().err


def test_parsing_where_nothing_was_recorded_says_why(tmp_path: Path, alone: None, capsys: Any) -> None:
    told = record(str(tmp_path), ["--profile-step-start", "5"], 3)
    assert told["recorded"] == []
    assert cli.main(["profile", "list", "-d", str(tmp_path)]) == 0
    assert "none" in capsys.readouterr().out
    assert cli.main(["profile", "parse", "-d", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "there is nothing to parse: no step was recorded" in said and "before step 5" in said


def test_gather_alone_makes_one_layout(made: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(made / "0", tmp_path / "in" / "node0" / "0")
    shutil.copytree(made / "1", tmp_path / "in" / "node1" / "profiles" / "x" / "1")
    assert cli.main(["profile", "gather", "-d", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    assert "profiles of ranks 0, 1 of 2" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1"]
    assert len(runs.find_profiles(tmp_path / "out")) == 2


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    from collective_ops.profiler.gather import _below

    for name in ("../x", "/etc/passwd", "a/../../x"):
        with pytest.raises(ValueError, match="is no path inside"):
            _below(tmp_path, name)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_callbacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alone: None) -> None:
    """Stand-ins with the hooks of the two libraries, called in the order in which these call them."""
    from collective_ops.profiler import callbacks

    hugging_face, lightning = types.ModuleType("transformers"), types.ModuleType("lightning.pytorch")
    hugging_face.TrainerCallback = lightning.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", hugging_face)
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)
    config = ProfileConfig(enable_profiling=True, profiling_dir=str(tmp_path / "a"), step_start=6, step_end=8)
    callback = callbacks.hugging_face_callback(config)
    state = types.SimpleNamespace(global_step=5)  # resumed
    callback.on_train_begin(None, state, None)
    for _ in range(4):
        torch.ones(4).sum()
        callback.on_step_end(None, state, None)
    callback.on_train_end(None, state, None)
    assert callback.loop.profiler.recorded == [6, 7]
    config = ProfileConfig(enable_profiling=True, profiling_dir=str(tmp_path / "b"), step_start=1, step_end=9)
    callback = callbacks.lightning_callback(config)
    trainer = types.SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, None)
    for batch in range(3):
        torch.ones(4).sum()
        callback.on_train_batch_end(trainer, None, None, None, batch)
    callback.on_exception(trainer, None, KeyboardInterrupt())
    assert callback.loop.profiler.recorded == [1, 2, 3]
    assert len(table(callback.loop.profiler.directory, "step_trace_time.csv")) == 3


@pytest.mark.parametrize("ns", [5, 50, 500, 999, 1_796_073_422_000_000_005, 1_796_073_422_999_999_999, 0, -5])
def test_times_are_exact_to_the_nanosecond(ns: int) -> None:
    assert kineto.nanoseconds(microseconds(ns)) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1.5", 1500), ("3", 3000), ("0.005", 5), ("5216404685383.38", 5216404685383380), ("1e3", 10**6)],
)
def test_microseconds_as_profilers_write_them(text: str, ns: int) -> None:
    assert kineto.nanoseconds(text) == ns


def made_up_trace(path: Path, extra: list[dict[str, Any]]) -> Path:
    mark = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#4",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 100,
    }
    trace = {"baseTimeNanoseconds": 1_796_073_422_000_000_000, "traceEvents": [mark, *extra]}
    path.write_text(json.dumps(trace))
    return path


def test_threads_with_large_numbers_stay_apart(tmp_path: Path) -> None:
    big = 139_872_123_456_512
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": tid, "ts": 10.001, "dur": 5}
        for i, tid in enumerate((big, big + 2**32, 0))
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": "x", "ts": "?", "dur": 5})
    step = kineto.read_step(made_up_trace(tmp_path / "t.json", events), 4, Group("", ""), False)
    assert {operator.tid for operator in step.operators} == {big, big + 2**32, 0}
    assert all(operator.parent == -1 for operator in step.operators) and step.damaged == 1
    assert step.operators[0].start == 1_796_073_422_000_010_001


def test_links_of_operators_of_one_name_stay_in_their_thread(tmp_path: Path) -> None:
    """Two threads run the same operators, each through the other's time."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": 10 + 20 * i + late, "dur": dur}
        for tid, late in ((7, 0.0), (8, 3.5))
        for i in range(3)
        for name, dur in (("aten::linear", 15), ("aten::mm", 9))
    ]
    step = kineto.read_step(made_up_trace(tmp_path / "t.json", events), 4, Group("", ""), False)
    kernels = kernels_of(step)
    assert len(kernels) == 6
    for kernel in kernels:
        operator = step.operators[kernel.operator]
        assert (operator.name, operator.tid) == ("aten::linear", kernel.tid)
        assert (operator.start, operator.end) == (kernel.start, kernel.end)
    inner = [operator for operator in step.operators if operator.name == "aten::mm"]
    assert len(inner) == 6 and all(step.operators[one.parent].tid == one.tid for one in inner)
    assert all(step.operators[one.parent].start == one.start for one in inner)


def test_odd_names_stay_whole_and_the_trace_valid(tmp_path: Path, alone: None) -> None:
    """Quotes and warnings while it records; a name with bare control characters in the raw data."""
    odd = 'say "hi" \\ 日志'
    config = ProfileConfig(
        enable_profiling=True, profiling_dir=str(tmp_path), step_start=0, step_end=1, with_cpu=True
    )
    with profile(config) as profiler:
        with torch.profiler.record_function(odd):
            torch.ones(4).sum()
        logging.getLogger("any").warning('a "quoted" warning')
        profiler.step()
    assert profiler.recorded == [0] and profiler.failure == ""
    assert {"aten::sum", "aten::ones"} <= {name for _, name, *_ in spans(profiler.directory)}
    path = made_up_trace(tmp_path / "t.json", [])
    bare = (
        '{"ph": "X", "cat": "cpu_op", "name": "a\tb\nc", "pid": 1, "tid": 1, "ts": 1, "dur": 5}, {"ph": "X"'
    )
    path.write_text(path.read_text().replace('{"ph": "X"', bare, 1))
    (operator,) = kineto.read_step(path, 4, Group("", ""), False).operators
    assert operator.name == "a\tb\nc"


def test_a_trace_without_its_mark_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no ProfilerStep#5"):
        kineto.read_step(made_up_trace(tmp_path / "t.json", []), 5, Group("", ""), False)


def test_intervals_agree_with_single_moments() -> None:
    generator = random.Random(1)
    for _ in range(300):
        left, right = (
            [(a, a + generator.randrange(6)) for a in generator.choices(range(40), k=generator.randrange(8))]
            for _ in range(2)
        )
        first, second = intervals.union(left), intervals.union(right)
        moments = [{t for a, b in part for t in range(a, b)} for part in (left, right)]
        assert {t for a, b in first for t in range(a, b)} == moments[0]
        rest = intervals.subtract(first, second)
        assert {t for a, b in rest for t in range(a, b)} == moments[0] - moments[1]
        assert intervals.length(rest) == len(moments[0] - moments[1])


def test_the_hash_of_a_group_is_the_ascend_profilers() -> None:
    assert group_hash("90.91.105.46%enp189s0f0_60000_0_1736410538306028") == "17148521525495523210"
    assert group_hash("") == ""


def test_own_directories_are_known_by_their_mark(tmp_path: Path) -> None:
    foreign = tmp_path / "0" / f"host_1_20260101000000000{runs.SUFFIX}"
    foreign.mkdir(parents=True)
    (foreign / "profiler_info_0.json").write_text('{"rank_id": 0}')
    (tmp_path / "loop").symlink_to(tmp_path)
    assert runs.find_profiles(tmp_path) == []
    assert os.listdir(tmp_path / "0") == [foreign.name]
