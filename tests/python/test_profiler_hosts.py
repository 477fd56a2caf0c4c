"""Profiles of two hosts, each with a clock of its own, brought together and onto one clock by the job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import network_hosts
import pytest
from collective_ops.profiler import clocks, runs

torch = pytest.importorskip("torch")

from collective_ops import analyze  # noqa: E402
from network_hosts import NetworkHosts  # noqa: E402
from test_profiler_clocks import real_times  # noqa: E402

HERE = Path(__file__).resolve().parent
AHEAD_NS, DRIFT_PPM = 700_000_000, 150.0
STEPS = 60
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(HERE)!r})
from profiled_runs import record
import collective_ops
rank = os.environ["RANK"]
flags = ["--profile-step-start", "1", "--profile-step-end", "{STEPS}", "--profile-level", "level2",
         "--profile-gather"]
# Rank 1 comes 25 ms late to each step's first call.
told = record(sys.argv[1] + "/host" + rank, flags, {STEPS}, lambda step: time.sleep(0.025 * int(rank)))
collective_ops.finalize()
assert told["failure"] == "", told
"""


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := network_hosts.unsupported():
        pytest.skip(reason)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: cc")
    root = tmp_path_factory.mktemp("hosts")
    library = root / "skewed_clock.so"
    source = HERE / "skewed_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", str(source), "-o", str(library)], check=True)
    secret = {"COLLECTIVE_OPS_SECRET": "7f" * 32}
    skewed = {
        "LD_PRELOAD": str(library),
        "SKEW_NS": str(AHEAD_NS),
        "SKEW_PPM": str(DRIFT_PPM),
        "SKEW_FILE": str(root / "start"),
    }
    with NetworkHosts(2) as hosts:
        command = [sys.executable, "-c", PROGRAM, str(root)]
        ends = hosts.run_ranks(command, env=secret, env_of={1: skewed}, timeout=150)
    assert [end.exit_code for end in ends] == [0, 0], "\n".join(end.output for end in ends)
    return root


def directory(root: Path, host: int, rank: int) -> Path:
    (found,) = (root / f"host{host}" / str(rank)).iterdir()
    return found


def test_offset_and_drift_are_told_within_their_bound(gathered: Path) -> None:
    """The largest error that is told holds at the first and at the last call."""
    info = json.loads((directory(gathered, 0, 1) / "profiler_info_1.json").read_text())[runs.MARK]
    assert info["host"] == "host1"
    clock = clocks.Clock(**info["clock"])
    assert clock.calls == (STEPS - 1) * 4 and clock.error_ns < 5_000_000
    start = int((gathered / "start").read_text())
    times = [time for pair in real_times(directory(gathered, 1, 1)).values() for time in pair]
    for time in (min(times), max(times)):  # of the skewed clock
        real = start + (time - AHEAD_NS - start) / (1 + DRIFT_PPM * 1e-6)
        assert abs(clock.correction(time) - (time - real)) <= clock.error_ns + 1000
    told = json.loads((directory(gathered, 0, 0) / "profiler_info_0.json").read_text())[runs.MARK]
    assert told["host"] == "host0" and not told.get("clock")


def test_calls_of_both_hosts_lie_on_one_clock(gathered: Path) -> None:
    """Nobody leaves a collective before all are in it; on its own clock rank 1 was 0.7 s elsewhere."""
    first, apart = real_times(directory(gathered, 0, 0)), real_times(directory(gathered, 1, 1))
    aligned = real_times(directory(gathered, 0, 1))
    assert first.keys() == apart.keys() == aligned.keys()
    error = clocks.Clock(
        **json.loads((directory(gathered, 0, 1) / "profiler_info_1.json").read_text())[runs.MARK]["clock"]
    ).error_ns
    for name, (begin, end) in first.items():
        other_begin, other_end = aligned[name]
        assert begin <= other_end + error + 1000 and other_begin <= end + error + 1000
        assert abs(apart[name][1] - end) > AHEAD_NS // 2


def test_the_analysis_takes_both_for_one_job(gathered: Path, tmp_path: Path) -> None:
    """On the clock that the profiles say they are on, on which every call fits."""
    report = analyze.cluster(gathered / "host0", "all", tmp_path)
    assert report.data["missing_ranks"] == [] and report.data["matched_calls"] == (STEPS - 1) * 4
    assert any("on the clock of host0 since" in note for note in report.data["notes"])
    assert not any("aligned by" in note or "cannot be" in note for note in report.data["notes"])
