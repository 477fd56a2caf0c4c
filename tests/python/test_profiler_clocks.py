"""Clocks of hosts that are off and run at other speeds: found within the error told, and taken off."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from collective_ops import cli
from collective_ops.profiler import clocks, rawdata, runs
from collective_ops.profiler.model import Call

torch = pytest.importorskip("torch")

from collective_ops import analyze  # noqa: E402
from profiled_runs import parts_by_sweep, record, record_delayed, spans, table  # noqa: E402
from rank_pool import RankPool  # noqa: E402

SECOND = 10**9


def made_up_calls(count: int, offset: int, drift: float, seed: int) -> tuple[list[Call], list[Call]]:
    """Of two ranks that come and leave at different times; the second's clock is off."""
    draw = random.Random(seed)
    first, second, start = [], [], 1_700_000_000 * SECOND
    for number in range(count):
        at = start + number * 50_000_000
        begins = [at + draw.randrange(2_000_000) for _ in range(2)]
        ends = [max(begins) + 5_000 + draw.randrange(80_000) for _ in range(2)]
        ahead = [offset + round(drift * (time - start)) for time in (begins[1], ends[1])]
        first.append(Call("allReduce", "g", number, begins[0], ends[0]))
        second.append(Call("allReduce", "g", number, begins[1] + ahead[0], ends[1] + ahead[1]))
    return first, second


@pytest.mark.parametrize("offset", [0, 250_000_000, -3_600 * SECOND])
@pytest.mark.parametrize("drift", [0.0, 20e-6, -100e-6])
def test_offset_and_drift_are_found_within_the_error(offset: int, drift: float) -> None:
    for seed in range(5):
        first, second = made_up_calls(100, offset, drift, seed)
        clock = clocks.fit(clocks.bounds(first, second))
        assert clock is not None and clock.calls == 100
        assert clock.error_ns < 1_000_000
        for one, other in zip(first, second, strict=True):
            truth = offset + round(drift * (one.end - first[0].start))
            assert abs(clock.correction(other.end) - truth) <= clock.error_ns + 1


def test_calls_that_bound_nothing_are_left_out() -> None:
    roots = [Call("broadcast", "g", n, n * 100, n * 100 + 50) for n in range(5)]
    assert clocks.bounds(roots, roots) == []  # its root waits for nobody
    failed = [Call("allReduce", "g", 1, 0, 10, status="error 3")]
    assert clocks.bounds(failed, failed) == [] and clocks.fit([]) is None
    apart = [(0, 0, 10), (10_000_000, 90_000_000, 90_000_010)]  # a clock that was set in between
    assert clocks.fit(apart) is None


def skew(directory: Path, host: str, offset: int, drift: float) -> None:
    """What the rank would have left on a host of that name with such a real clock."""
    (path,) = directory.glob("profiler_info*.json")
    info = json.loads(path.read_text())
    info[runs.MARK]["host"] = host
    path.write_text(json.dumps(info))
    start = 0
    for path in rawdata._in_order(directory / runs.RAW):
        content = json.loads(path.read_text())
        if "step" not in content:
            continue
        trace_path = rawdata.trace_file(directory, content["step"])
        trace = json.loads(trace_path.read_text())
        (mark,) = [e for e in trace["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep#")]
        now = int(trace["baseTimeNanoseconds"]) + round(mark["ts"] * 1000)
        start = start or now
        ahead = offset + round(drift * (now - start))
        trace["baseTimeNanoseconds"] = int(trace["baseTimeNanoseconds"]) + ahead
        trace_path.write_text(json.dumps(trace))
        content["offset"] += ahead
        content["resident"] = [[time + ahead, size] for time, size in content["resident"]]
        path.write_text(json.dumps(content))


def real_times(directory: str | Path) -> dict[str, tuple[int, int]]:
    """Begin and end of each call of the trace, ns since 1970."""
    first = json.loads((Path(directory) / runs.OUTPUT / "trace_view.json").read_bytes())[0]
    base = first["args"]["value"]
    return {
        name: (base + a, base + b) for lane, name, a, b, _ in spans(directory) if name.startswith("hcom_")
    }


def test_profiles_of_hosts_with_skewed_clocks(rank_pool: RankPool, tmp_path: Path, capsys: Any) -> None:
    """Rank 1's clock is 0.7 s ahead and runs 100 ppm fast; rank 0 comes late to each step's first call."""
    root = tmp_path / "p"
    flags = ["--profile-step-start", "2", "--profile-step-end", "14", "--profile-level", "level2"]
    told = rank_pool.run(record_delayed, 2, (str(root), flags, 14, 0, 0.3, "call"))
    late = Path(told[1]["directory"])
    truth = real_times(late)
    shutil.copytree(root, tmp_path / "before")
    skew(late, "elsewhere", 700_000_000, 100e-6)
    assert cli.main(["profile", "parse", "-d", str(root)]) == 0
    said = capsys.readouterr().out
    found = re.search(
        r"clock of host elsewhere: (\S+) ms from that of \S+, drift (\S+) ppm, to (\S+) us", said
    )
    assert found, said
    error_ns = float(found[3]) * 1000
    assert error_ns < 5_000_000
    assert float(found[1]) == pytest.approx(700, abs=error_ns / 1e6 + 0.1)
    aligned = real_times(late)
    assert aligned.keys() == truth.keys() and len(truth) == 12 * 4
    for name, times in truth.items():  # the skew of a step is one number, which adds a little
        for time, same in zip(aligned[name], times, strict=True):
            assert abs(time - same) <= error_ns + 100_000
    rows, swept = table(late, "step_trace_time.csv"), parts_by_sweep(late)
    for row in rows:  # still exact
        whole = sum(float(row[c]) for c in ("Computing", "Communication(Not Overlapped)", "Free"))
        assert round(whole * 1000) == swept[row["Step"]]["step"]
    report = analyze.cluster(root)
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [0]
    assert cli.main(["profile", "parse", "-d", str(root)]) == 0  # a second time nothing moves
    assert real_times(late) == aligned


def test_hosts_without_a_common_call_are_told(rank_pool: RankPool, tmp_path: Path, capsys: Any) -> None:
    flags = ["--profile-step-start", "1", "--profile-step-end", "2"]
    told = rank_pool.run(record, 2, (str(tmp_path), flags, 2))
    directory = Path(told[1]["directory"])
    skew(directory, "elsewhere", 0, 0)
    for path in (directory / runs.RAW).glob("calls_*"):
        if path.suffix == ".bin":
            path.unlink()
    cli.main(["profile", "parse", "-d", str(tmp_path)])
    assert "elsewhere: taken as it is, there are no calls by which to align it" in capsys.readouterr().out
