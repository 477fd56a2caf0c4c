"""`collective-ops heatmap` on small traces that the tests write."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
TOOLS = Path(__file__).parents[2] / "tools"
from collective_ops import cli, heatmap  # noqa: E402

Event = dict[str, Any]


def call(rank: int, begin: float, duration: float, tid: int = 0, **arguments: Any) -> Event:
    return {
        "ph": "X",
        "cat": "collective",
        "name": "all_reduce",
        "pid": rank,
        "tid": tid,
        "ts": begin,
        "dur": duration,
        "args": {"status": "ok", "waited_us": 0.0, "moved_us": 0.0, **arguments},
    }


def write_trace(path: Path, world_size: int, events: list[Event], **ours: Any) -> Path:
    """As the merge writes it: an event per line."""
    counts = [sum(event["pid"] == rank for event in events) for rank in range(world_size)]
    ranks = [{"rank": rank, "calls": count, "problem": ""} for rank, count in enumerate(counts)]
    about = {"job": "digits", "world_size": world_size, "missing_ranks": [], "ranks": ranks, **ours}
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    path.write_text(
        f'{{"schemaVersion":1,\n"collective_ops":{json.dumps(about)},\n"traceEvents":[\n{lines}\n]}}\n'
    )
    return path


def two_ranks(path: Path) -> Path:
    """Rank 1 computes longer, and rank 0 waits for it; rank 1 reads six times what rank 0 does."""
    events = []
    for step in range(5):
        start = 1000.0 * step
        waits = {"waited_us": 300.0, "moved_us": 100.0, "peer_waited_us": {"1": 300.0}}
        events.append(call(0, start + 500, 400, **waits, peer_read_bytes={"1": 10}))
        events.append(call(1, start + 800, 100, moved_us=100.0, peer_read_bytes={"0": 60}))
    return write_trace(path, 2, events)


def run(tmp_path: Path, trace: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON."""
    numbers = tmp_path / "numbers.json"
    output = ["--output", str(tmp_path / "heatmap.png"), "--json", str(numbers)]
    code = heatmap.main(["--trace", str(trace), *output, *more])
    return code, json.loads(numbers.read_text()) if code == 0 else {}


def assert_is_png(path: Path) -> None:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[16:20], "big") > 1000


def test_adds_up_bytes_waiting_and_transfer(tmp_path: Path) -> None:
    code, found = run(tmp_path, two_ranks(tmp_path / "trace.json"))
    assert code == 0
    assert found["bytes"] == [[0, 240], [40, 0]]  # [from][to], of 4 calls: the first is left out
    assert found["waited_us"] == [[0, 1200], [0, 0]]
    assert found["moved_us"] == [[0, 400], [400, 0]]
    first, second = found["balance"]
    # The windows begin where the first call ends, at 900 us, and end with the last one, at 4900 us.
    assert first == {
        "rank": 0,
        "calls": 4,
        "window_us": 4000,
        "outside_us": 2400,
        "waited_us": 1200,
        "moved_us": 400,
        "other_us": 0,
    }
    assert (second["window_us"], second["outside_us"], second["waited_us"]) == (4000, 3600, 0)
    assert_is_png(tmp_path / "heatmap.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heatmap.png", "numbers.json", "trace.json"]


def test_names_load_link_and_slow_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = run(tmp_path, two_ranks(tmp_path / "trace.json"))
    findings = found["findings"]
    assert not findings["balance"]["balanced"]
    assert (findings["balance"]["rank"], findings["balance"]["excess"]) == (1, pytest.approx(0.2))
    link = findings["hottest_link"]
    assert (link["from"], link["to"], link["hot"]) == (0, 1, True)
    assert link["times_mean"] == pytest.approx(240 / 140)
    assert (findings["most_waited_for"]["rank"], findings["most_waited_for"]["share"]) == (1, 1.0)
    printed = capsys.readouterr().out
    assert "the load is uneven; rank 1 spends 3.6 ms outside of calls, 20% more" in printed
    assert "hot link rank 0 -> rank 1: 240 B in 400 us, 1.7 times the mean" in printed
    assert "rank 1 is waited for most: 1.2 ms, 100% of all waiting" in printed
    assert "first call of each rank and group is left out" in printed


def test_keeps_the_first_call_where_asked(tmp_path: Path) -> None:
    code, found = run(tmp_path, two_ranks(tmp_path / "trace.json"), "--all-calls")
    assert code == 0
    assert found["bytes"] == [[0, 300], [50, 0]]
    assert found["balance"][0]["window_us"] == 4400
    assert found["findings"]["notes"] == []


def test_an_even_job_has_no_hot_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        call(
            rank, 100.0 * step, 50, moved_us=30.0, peer_read_bytes={str(p): 8 for p in range(4) if p != rank}
        )
        for step in range(4)
        for rank in range(4)
    ]
    code, found = run(tmp_path, write_trace(tmp_path / "trace.json", 4, events))
    assert code == 0
    assert found["findings"]["balance"]["balanced"]
    assert not found["findings"]["hottest_link"]["hot"]
    assert found["findings"]["most_waited_for"] is None
    printed = capsys.readouterr().out
    assert "the load is even" in printed and "no hot link; of 12 in use" in printed
    assert "no rank waited for another" in printed


def test_times_measured_per_peer_go_before_the_split_by_bytes(tmp_path: Path) -> None:
    measured = call(
        0, 0, 100, moved_us=90.0, peer_read_bytes={"1": 1, "2": 1}, peer_moved_us={"1": 80.0, "2": 10.0}
    )
    split = call(1, 0, 100, moved_us=90.0, peer_read_bytes={"0": 20}, peer_written_bytes={"2": 10})
    code, found = run(tmp_path, write_trace(tmp_path / "trace.json", 3, [measured, split]))
    assert code == 0
    assert found["moved_us"] == [[0, 60, 0], [80, 0, 30], [10, 0, 0]]
    assert found["bytes"] == [[0, 20, 0], [1, 0, 10], [1, 0, 0]]


def test_leaves_out_the_first_call_of_each_group(tmp_path: Path) -> None:
    events = [call(0, 100.0 * i, 10, tid=i % 2, peer_read_bytes={"1": 1}) for i in range(8)]
    code, found = run(tmp_path, write_trace(tmp_path / "trace.json", 2, events))
    assert code == 0
    assert found["balance"][0]["calls"] == 6


@pytest.mark.parametrize("world_size", [1, 3, 16, 33, 64])
def test_draws_any_number_of_ranks(tmp_path: Path, world_size: int) -> None:
    events = [
        call(rank, 0, 10 + rank, waited_us=5.0, moved_us=2.0, **pair)
        for rank in range(world_size)
        for peer in [str((rank + 1) % world_size)]
        for pair in [
            {"peer_waited_us": {peer: 5.0}, "peer_read_bytes": {peer: 4096}} if world_size > 1 else {}
        ]
    ]
    code, found = run(tmp_path, write_trace(tmp_path / "trace.json", world_size, events))
    assert code == 0
    assert len(found["bytes"]) == world_size
    assert_is_png(tmp_path / "heatmap.png")


def test_names_missing_damaged_and_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(
        tmp_path / "trace.json",
        4,
        [call(0, 0, 10), call(1, 0, 10, status="mismatch")],
        missing_ranks=[2, 3],
        ranks=[{"rank": 0, "calls": 1, "problem": "cut off"}],
    )
    code, _ = run(tmp_path, trace)
    assert code == 0
    printed = capsys.readouterr().out
    for text in ("no trace of rank 2, 3", "rank 0: cut off", "rank 1: 1 call failed"):
        assert text in printed


def test_reads_compressed_and_reformatted_traces(tmp_path: Path) -> None:
    plain = two_ranks(tmp_path / "trace.json")
    _, expected = run(tmp_path, plain)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    indented = tmp_path / "indented.json"
    indented.write_text(json.dumps(json.loads(plain.read_text()), indent=2))
    for other in (packed, indented):
        code, found = run(tmp_path, other)
        assert code == 0
        assert found["bytes"] == expected["bytes"]
        assert found["balance"] == expected["balance"]


def broken_traces(folder: Path) -> dict[str, tuple[Path, str]]:
    whole = two_ranks(folder / "whole.json").read_text()
    texts = {
        "empty file": ("", "not a trace"),
        "no JSON": ("hello\n", "not a trace"),
        "binary": ("\0\1\2" * 100, "not a trace"),
        "other JSON": ('{"a": 1}', "no list `traceEvents`"),
        "other producer": (
            '{"traceEvents": [{"ph": "X", "name": "aten::add"}]}',
            "not one of collective_ops",
        ),
        "bare list": ("[]", "not one of collective_ops"),
        "cut in an event": (whole[: whole.rindex("peer_read")], "cut short"),
        "cut behind an event": (whole[: whole.rindex("]")], "cut short"),
        "cut in the header": (whole[:60], "not a trace"),
        "rank outside": (whole.replace('"pid":1', '"pid":7'), "column"),
        "peer below": (whole.replace('{"1":300.0}', '{"-1":300.0}'), "column"),
        "text as time": (whole.replace('"dur":400', '"dur":"long"'), "column"),
    }
    found = {"absent": (folder / "absent.json", "COLLECTIVE_OPS_TRACE=1"), "folder": (folder, "directory")}
    for name, (text, message) in texts.items():
        path = folder / f"{name}.json"
        path.write_text(text)
        found[name] = (path, message)
    half = folder / "half.json.gz"
    half.write_bytes(gzip.compress(whole.encode())[:-40])
    found["half gzip"] = (half, "cannot be read")
    found["no gzip"] = (folder / "no.json.gz", "cannot be read")
    found["no gzip"][0].write_text(whole)
    no_calls = write_trace(folder / "no_calls.json", 2, [])
    found["no calls"] = (no_calls, "no calls in it")
    return found


def test_says_what_is_wrong_with_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "out.png"
    for name, (trace, message) in broken_traces(tmp_path).items():
        assert heatmap.main(["--trace", str(trace), "--output", str(picture)]) == 2, name
        printed = capsys.readouterr()
        assert printed.out == "", name
        assert message in printed.err, f"{name}: {printed.err}"
        assert printed.err.count("\n") == 1, name
        assert not picture.exists(), name


def test_says_what_is_wrong_with_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = two_ranks(tmp_path / "trace.json")
    for output, message in (("absent/out.png", "cannot be written"), ("out.bmp", ".png, .svg or .pdf")):
        assert heatmap.main(["--trace", str(trace), "--output", str(tmp_path / output)]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_the_program_prints_pure_json_and_teaches(tmp_path: Path) -> None:
    trace = two_ranks(tmp_path / "trace.json")
    program = [sys.executable, str(TOOLS / "comm_heatmap.py")]
    options = ["--trace", str(trace), "--output", str(tmp_path / "out.svg"), "--json", "-"]
    done = subprocess.run([*program, *options], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["world_size"] == 2
    assert "hot link rank 0 -> rank 1" in done.stderr
    assert "<svg" in (tmp_path / "out.svg").read_text()
    taught = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True).stdout
    for word in ("balanced", "hot link", "waited for", "COLLECTIVE_OPS_TRACE=1", "Exit codes"):
        assert word in taught


@pytest.mark.parametrize("name", ["", ".", "folder"])
def test_numbers_need_the_name_of_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    trace = two_ranks(tmp_path / "trace.json")
    output = ["--trace", str(trace), "--output", "heatmap.png", "--json", name]
    assert heatmap.main(output) == 2
    assert "is a folder: give a file's name" in capsys.readouterr().err


def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = two_ranks(tmp_path / "trace.json")
    assert cli.main(["heatmap", "--trace", str(trace), "--output", str(tmp_path / "out.svg")]) == 0
    assert "hot link rank 0 -> rank 1" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert cli.main(["heatmap", "--trace", str(tmp_path / "absent.json")]) == 2
    assert capsys.readouterr().err.startswith("collective-ops heatmap: ")
