"""The benchmarks' parsing, statistics, schedule and tables, and small runs of the programs."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import allreduce_benchmark  # noqa: E402
import costs_benchmark  # noqa: E402
import tuner_benchmark  # noqa: E402
from collective_ops.sweep import Point  # noqa: E402
from harness import cases, contenders, figures, report  # noqa: E402
from harness.cases import Case  # noqa: E402
from harness.figures import DIRECT, DIRECT_AGAIN, GLOO, PRIVATE, PYTHON, Row  # noqa: E402
from harness.gradients import BYTES as GRADIENT_BYTES  # noqa: E402
from harness.gradients import LABELS, gradient_sizes  # noqa: E402
from harness.rank_group import GroupError, RankGroup  # noqa: E402
from harness.schedule import Bench, Contender, Effort  # noqa: E402

needs_core = pytest.mark.skipif(
    not contenders.CORE.exists(), reason="make build has not built the benchmarks"
)
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


# ---------------------------------------------------------------- parsing


def test_sizes_are_read_as_users_write_them() -> None:
    assert cases.parse_sizes("8,4K,64KiB,1.5M,1gb") == (8, 4096, 65536, 3 * 2**19, 2**30)
    sweep = cases.parse_sizes("sweep")
    assert (sweep[0], sweep[-1]) == (8, 2**28)


@pytest.mark.parametrize("text", ["", "x", "4X", "0", "-4", "1e999"])
def test_a_wrong_size_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="size"):
        cases.parse_size(text)


def test_defaults_are_gradients_and_the_sweep_and_quick_is_small() -> None:
    options = allreduce_benchmark.parse([])
    assert options.gradients and options.sweep and options.ranks == (2, 4, 8)
    assert (options.collective, options.sizes) == (("all_reduce",), cases.SWEEP)
    options = allreduce_benchmark.parse(["--quick"])
    assert not options.gradients and options.ranks == (2,) and options.sizes == cases.QUICK
    options = allreduce_benchmark.parse(["--gradients", "--ranks", "2,8"])
    assert options.gradients and not options.sweep and options.ranks == (2, 8)
    assert allreduce_benchmark.parse(["--collective", "all"]).collective == cases.COLLECTIVES


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--collective", "allgather"], "'allgather' is none of all_reduce"),
        (["--ranks", "1,2"], "start at 2"),
        (["--ranks", "two"], "2,4,8"),
        (["--peers", "nccl"], "'nccl' is none of openmpi"),
        (["--rounds", "-1"], "--rounds"),
        (["--gradients", "--collective", "reduce"], "--gradients"),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        allreduce_benchmark.parse(arguments)
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err


def test_costs_know_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert costs_benchmark.parse(["--only", "wait,trace", "--sizes", "8,1K"]).sizes == (8, 1024)
    for wrong in (["--only", "speed"], ["--sizes", "x"], ["--ranks", "1"]):
        with pytest.raises(SystemExit):
            costs_benchmark.parse(wrong)
    assert "'speed' is none of setup" in capsys.readouterr().err


# ---------------------------------------------------------------- cases


def test_sizes_hold_whole_elements_of_every_part() -> None:
    def sizes(collective: str, ranks: int = 8) -> list[int]:
        return [case.bytes for case in cases.make_cases(collective, "float32", ranks, (8, 20, 64))]

    assert sizes("all_reduce") == [8, 20, 64]
    assert sizes("all_gather") == [32, 64]  # 8 and 20 bytes both need one element of each rank
    assert sizes("barrier") == [0]


def test_bus_factors_are_those_of_nccl_tests() -> None:
    factors = {name: Case(name, "float32", 8, 64).busbw_factor() for name in cases.COLLECTIVES}
    assert factors["all_reduce"] == 2 * 7 / 8
    assert factors["broadcast"] == factors["reduce"] == 1
    assert {factors[name] for name in ("all_gather", "reduce_scatter", "all_to_all", "gather")} == {7 / 8}


def test_least_traffic_is_in_proportion_to_the_bytes() -> None:
    for name in cases.COLLECTIVES[:-1]:
        small, large = (Case(name, "float32", 4, size).least_traffic() for size in (64, 640))
        assert 0 < small <= 2 * 4 * 64 and large == 10 * small
    assert Case("barrier", "float32", 4, 0).least_traffic() == 0


# ---------------------------------------------------------------- statistics


def make_row(size: int = 2**20, ranks: int = 2, **seconds: list[float]) -> Row:
    names = {"direct": DIRECT, "again": DIRECT_AGAIN, "private": PRIVATE, "gloo": GLOO, "python": PYTHON}
    measured = {names.get(name, name): values for name, values in seconds.items()}
    products = {name: name.split("_")[0] for name in measured if name.startswith(("a_", "b_"))}
    return Row(Case("all_reduce", "float32", ranks, size), measured, products=products)


def test_a_paired_ratio_is_free_of_the_machines_drift() -> None:
    drift = [1.0, 2.0, 5.0, 3.0]
    row = make_row(direct=[2 * x for x in drift], a_spin=[4 * x for x in drift])
    assert row.ratio(DIRECT, "a_spin") == 0.5
    assert row.ratio(DIRECT, None) is None and row.ratio(DIRECT, "absent") is None


def test_the_best_peer_is_the_fastest_setting_of_any_product() -> None:
    row = make_row(direct=[1.0], a_spin=[5.0], a_yield=[3.0], b_spin=[4.0])
    assert row.best_peer() == "a_yield"
    assert row.best_peer("b") == "b_spin"
    assert make_row(direct=[1.0]).best_peer() is None


def test_the_spread_is_of_a_program_against_itself() -> None:
    assert make_row(direct=[1.0, 1.0, 1.0], again=[1.0, 2.0, 0.25]).spread() == pytest.approx(2.0)
    assert make_row(direct=[1.0, 3.0], again=[1.0, 3.0]).spread() == 1.0
    assert make_row(direct=[1.0]).spread() is None


def test_a_size_is_lost_beyond_the_tolerance_and_the_spread() -> None:
    quiet, noisy = {"again": [1.0, 1.0]}, {"again": [1.2, 1.2]}
    slower = {"direct": [1.0, 1.0], "a_spin": [0.9, 0.9]}
    assert make_row(**slower, **quiet).lost(DIRECT)
    assert not make_row(**slower, **noisy).lost(DIRECT)
    assert not make_row(direct=[1.0], a_spin=[0.96], again=[1.0]).lost(DIRECT)
    assert not make_row(direct=[1.0]).lost(DIRECT)


def test_the_summary_has_means_losses_and_scaling() -> None:
    rows = [
        make_row(8, 2, direct=[1e-6], python=[3e-6], a_spin=[4e-6], gloo=[100e-6]),
        make_row(2**20, 2, direct=[1e-3], a_spin=[1e-3], gloo=[1e-3]),
        make_row(2**20, 4, direct=[4e-3]),
    ]
    summary = dict(figures.summarise(rows, cores=2))
    assert summary["all_reduce, 2 ranks: core direct, times the speed of the best peer, mean over sizes"] == (
        pytest.approx(2.0)
    )
    gloo = summary["all_reduce, 2 ranks: core direct, times the speed of gloo, mean over sizes"]
    assert gloo == pytest.approx(10.0)
    assert summary["all_reduce, 2 ranks: core direct, sizes lost to the best peer, of 2"] == 0
    assert summary["all_reduce, 2 ranks: microseconds more through Python, up to 4 KiB"] == pytest.approx(2.0)
    scaling = "all_reduce: weak-scaling efficiency, 2 to 4 ranks (oversubscribed: 4 ranks on 2 cores)"
    assert summary[scaling] == pytest.approx(0.25)


# ---------------------------------------------------------------- tables


def test_a_line_shows_bandwidths_ratios_and_marks_what_is_lost() -> None:
    row = make_row(direct=[100e-6], again=[100e-6], private=[400e-6], gloo=[1e-3], a_spin=[200e-6])
    row.limit_seconds = 50e-6
    text = report.line(row)
    assert text.startswith("    1 MiB     100.00     400.00          -   10.486   10.486")
    assert " 0.50 " in text and " 2.00!" in text and text.endswith("50%  a_spin")
    # Columns stand under their names.
    assert text.index("0.50 ") + 4 == report.HEADER.index("d/peer") + len("d/peer") - 1
    assert text.index("50%") + 3 == report.HEADER.index("limit") + len("limit")


def test_a_line_stands_without_peers_gloo_and_bytes() -> None:
    row = Row(Case("barrier", "float32", 2, 0), {DIRECT: [1e-6]})
    cells = report.line(row).split()
    assert cells[:2] == ["-", "1.00"] and cells[-1] == "none" and "nan" not in cells


def test_the_table_of_gradients_compares_with_gloo_where_it_ran() -> None:
    case = Case("resnet50", "float32", 2, GRADIENT_BYTES)
    table = report.gradient_table(Row(case, {"shared": [0.01, 0.02], "gloo": [0.1, 0.2]}))
    assert table.splitlines()[3].split()[-3:] == ["15.00", "6.82", "10.0"]
    assert report.gradient_table(Row(case, {"shared": [0.01]})).endswith(" -")


def test_csv_has_a_line_for_each_contender(tmp_path: Path) -> None:
    row = make_row(direct=[100e-6] * 3, again=[100e-6] * 3, a_spin=[200e-6] * 3)
    report.write_csv(str(tmp_path / "out.csv"), [row])
    with open(tmp_path / "out.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["contender"] for line in lines] == [DIRECT, DIRECT_AGAIN, "a_spin"]
    assert float(lines[0]["ratio_to_best_peer"]) == pytest.approx(0.5)
    assert (lines[0]["ratio_to_gloo"], lines[0]["rounds"], lines[2]["product"]) == ("", "3", "a")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [make_row(size, ranks, direct=[1e-6], a_spin=[2e-6]) for size in (8, 64) for ranks in (2, 8)]
    report.draw(str(tmp_path / "out.png"), rows)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- schedule


class FakeGroup:
    """Answers orders as a group would whose call takes `seconds`."""

    def __init__(
        self, log: list[str], name: str, seconds: float, fails: str = "", fatal: bool = False
    ) -> None:
        self.log, self.name, self.seconds, self.fails, self.fatal = log, name, seconds, fails, fatal
        self.killed = False

    def order(self, line: str) -> float:
        words = line.split()
        self.log.append(f"{self.name} {words[0]}")
        if words[0] == self.fails:
            raise GroupError(f"{self.name} failed", fatal=self.fatal)
        return self.seconds * int(words[2]) if words[0] == "run" else 0.0

    def kill(self) -> None:
        self.killed = True


def make_bench(groups: list[tuple[Any, str]], **more: Any) -> tuple[Bench, list[str]]:
    said: list[str] = []
    members = [Contender(group.name, group, "private", product) for group, product in groups]
    settings: dict[str, Any] = {"effort": Effort(rounds=4, batch_seconds=0.01), "free_bytes": 2**40, **more}
    return Bench(members, limit_seconds=lambda case: None, say=said.append, **settings), said


CASE = Case("all_reduce", "float32", 2, 1024)


def test_contenders_take_turns_there_and_back() -> None:
    log: list[str] = []
    bench, _ = make_bench([(FakeGroup(log, name, 0.004), "") for name in "ab"])
    row = bench.measure(CASE)
    assert row.seconds == {"a": [0.004] * 4, "b": [0.004] * 4}
    turns = [entry for entry in log if entry.endswith("run")][-8:]
    assert [turn[0] for turn in turns] == list("abbaabba")
    assert log[:3] == ["a case", "a check", "a run"] and log[-2:] == ["a drop", "b drop"]
    assert [log.count(entry) for entry in ("b case", "b check", "b drop")] == [1, 1, 1]


def test_a_hopeless_setting_is_left_out_but_not_a_slow_product() -> None:
    log: list[str] = []
    fast, spin = FakeGroup(log, "fast", 0.001), FakeGroup(log, "spin", 0.1)
    other, ours = FakeGroup(log, "other", 0.05), FakeGroup(log, "ours", 0.5)
    bench, _ = make_bench([(fast, "x"), (spin, "x"), (other, "y"), (ours, "")])
    row = bench.measure(CASE)
    assert set(row.seconds) == {"fast", "other", "ours"} and "100 times" in row.left_out["spin"]
    log.clear()
    assert "spin" in bench.measure(Case("all_reduce", "float32", 2, 4096)).left_out
    assert "spin case" not in log  # 100 times is never tried again


def test_a_slow_contender_gets_fewer_rounds_but_two() -> None:
    bench, _ = make_bench([(FakeGroup([], "slow", 30.0), ""), (FakeGroup([], "fast", 1e-3), "")])
    row = bench.measure(CASE)
    assert (len(row.seconds["slow"]), len(row.seconds["fast"])) == (2, 4)


def test_where_memory_is_short_what_was_hopeless_is_not_tried_again() -> None:
    log: list[str] = []
    bench, _ = make_bench(
        [(FakeGroup(log, "fast", 0.001), "x"), (FakeGroup(log, "spin", 0.005), "x")],
        free_bytes=100 * CASE.held_bytes(),
    )
    for case, tried in ((CASE, True), (CASE, True), (Case("all_reduce", "float32", 2, 2**20), False)):
        log.clear()
        assert "spin" in bench.measure(case).left_out
        assert ("spin case" in log) == tried


def test_a_contender_takes_no_part_above_its_size() -> None:
    group: Any = FakeGroup([], "small", 1e-3)
    bench, _ = make_bench([(FakeGroup([], "any", 1e-3), "")])
    bench.contenders.append(Contender("small", group, "private", up_to=1024))
    assert set(bench.measure(CASE).seconds) == {"any", "small"}
    assert set(bench.measure(Case("all_reduce", "float32", 2, 2048)).seconds) == {"any"}


@pytest.mark.parametrize("fatal", [False, True])
def test_a_failing_peer_is_left_out_and_the_others_are_measured(fatal: bool) -> None:
    bad, good = FakeGroup([], "bad", 1e-3, "check", fatal), FakeGroup([], "good", 1e-3)
    bench, said = make_bench([(bad, "x"), (good, "")])
    row = bench.measure(CASE)
    assert set(row.seconds) == {"good"} and row.left_out == {"bad": "bad failed"} and bad.killed == fatal
    assert said == ["left out: bad: bad failed"]


def test_buffers_are_made_for_each_turn_where_memory_is_short() -> None:
    log: list[str] = []
    groups = [(FakeGroup(log, name, 0.02), "") for name in "ab"]
    bench, _ = make_bench(groups, free_bytes=CASE.held_bytes())
    row = bench.measure(CASE)
    assert log.count("a case") == log.count("b case") == 1 + 4  # one to estimate, one a round
    held = {"a": 0, "b": 0}
    for entry in log:
        held[entry[0]] += {"case": 1, "drop": -1}.get(entry[2:], 0)
        held[entry[0]] = max(0, held[entry[0]])
        assert sum(held.values()) <= 1
    assert row.seconds == {"a": [0.02] * 4, "b": [0.02] * 4}


# ---------------------------------------------------------------- groups of ranks

RANK = """
import os, socket, sys, time
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[1])
channel.sendall(f"hello {sys.argv[2]} {os.getpid()}\\n".encode())
for line in channel.makefile():
    word = line.split()[0]
    if word == "hang":
        time.sleep(600)
    if word == "die":
        print("last words")
        sys.exit(3)
    answers = {"rank": f"ok {sys.argv[2]}", "fail": "error no such thing"}
    channel.sendall((answers[word] + "\\n").encode())
"""


def start_ranks(ranks: int = 2, program: str = RANK) -> RankGroup:
    return RankGroup(
        "test", ranks, lambda path: [[sys.executable, "-c", program, path, str(r)] for r in range(ranks)]
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_group_answers_with_the_largest_number_and_leaves_when_closed() -> None:
    with start_ranks(3) as group:
        assert group.order("rank") == 2
        pids = group.pids()
        with pytest.raises(GroupError, match="rank 0: no such thing") as caught:
            group.order("fail")
        assert not caught.value.fatal
        assert group.order("rank") == 2
    assert len(pids) == 3 and not any(alive(pid) for pid in pids)


def test_a_rank_that_hangs_is_given_up_and_killed() -> None:
    group = start_ranks()
    pids = group.pids()
    with pytest.raises(GroupError, match="no answer in time") as caught:
        group.order("hang", seconds=0.2)
    assert caught.value.fatal
    begin = time.monotonic()
    group.close(seconds=0.1)
    assert time.monotonic() - begin < 30 and not any(alive(pid) for pid in pids)


def test_a_dead_rank_is_an_error_with_its_last_words() -> None:
    with start_ranks() as group, pytest.raises(GroupError, match="(?s)a rank ended.*last words"):
        group.order("die")


def test_a_program_that_does_not_start_says_why() -> None:
    with pytest.raises(GroupError, match="(?s)ended with 7.*0 of 2 ranks.*no such library"):
        start_ranks(2, "import sys; print('no such library'); sys.exit(7)")


# ---------------------------------------------------------------- the programs


def run_program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@needs_core
@needs_torch
def test_the_benchmark_runs_and_writes_what_it_measured(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    done = run_program(
        "allreduce_benchmark.py",
        *("--collective", "all", "--sizes", "4K", "--ranks", "2", "--rounds", "1", "--peers", "none"),
        *("--json", str(written), "--csv", str(tmp_path / "out.csv")),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(written.read_text())["rows"]
    assert [row["collective"] for row in rows] == list(cases.COLLECTIVES)
    for row in rows:
        assert set(row["seconds"]) == {*figures.OURS, GLOO} and not row["left_out"], row["collective"]
        assert all(0 < value < 60 for values in row["seconds"].values() for value in values)
    assert done.stdout.count("\n    4 KiB ") == len(cases.COLLECTIVES) - 1
    assert "left out" not in done.stderr


@needs_torch
def test_the_gradients_are_those_of_the_example() -> None:
    sizes = gradient_sizes()
    assert (len(sizes), 4 * sum(sizes)) == (161, GRADIENT_BYTES)


@pytest.mark.slow
@needs_core
@needs_torch
def test_the_gradients_of_resnet50_are_measured() -> None:
    done = run_program("allreduce_benchmark.py", "--gradients", "--ranks", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "161 gradients, 102.2 MB, 2 ranks" in done.stdout
    assert all(label in done.stdout for label in LABELS.values())


@needs_core
def test_the_costs_of_tracing_are_measured(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    done = run_program(
        "costs_benchmark.py",
        *("--only", "trace", "--sizes", "8", "--rounds", "1", "--json", str(written)),
    )
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(written.read_text())["trace"]
    assert line["off_us"] > 0 and line["on_us"] == pytest.approx(line["off_us"] + line["added_us"])


@pytest.mark.slow
@needs_core
@needs_torch
def test_every_peer_that_is_there_computes_what_ours_does(tmp_path: Path) -> None:
    present = [product for product in contenders.PRODUCTS if product.program().exists()]
    if not present:
        pytest.skip(contenders.HOW_TO_GET)
    written = tmp_path / "out.json"
    done = run_program(
        "allreduce_benchmark.py",
        *("--collective", "all", "--sizes", "4K", "--ranks", "2", "--rounds", "1", "--json", str(written)),
    )
    assert done.returncode == 0, done.stderr
    for row in json.loads(written.read_text())["rows"]:
        # `check` compares values: a wrong one would be left out.
        assert set(row["products"].values()) == {product.name for product in present}, row["left_out"]


def test_a_core_that_is_not_built_is_named() -> None:
    pytest.importorskip("torch")
    done = run_program("allreduce_benchmark.py", "--quick", "--peers", "none", "--core", "/nonexistent/core")
    assert done.returncode == 1 and "make build" in done.stderr and "Traceback" not in done.stderr


# ---------------------------------------------------------------- the tuner


def timed(algorithm: str, us: list[float], **more: Any) -> Point:
    fields = {"collective": "all_reduce", "ranks": 2, "bytes": 64, "shared": True, "path": "staged"}
    fields |= {"chosen": False, "ordered": True, "us": us} | more
    return Point(algorithm=algorithm, **fields)


def test_a_choice_is_right_within_ten_percent_or_the_noise() -> None:
    def judged(taken: float, auto: float, best: float) -> tuple[bool, float]:
        points = [timed("a", [taken], chosen=True), timed("auto", [auto]), timed("b", [best])]
        points.append(timed("c", [0.01], ordered=False))  # not to be taken here
        (choice,) = tuner_benchmark.choices_of(points)
        return choice.right, round(choice.ratio, 2)

    assert judged(1.05, 1.05, 1.0) == (True, 1.05)
    assert judged(1.2, 1.2, 1.0) == (False, 1.2)
    assert judged(1.2, 1.6, 1.0) == (True, 1.2)  # it differs from itself by a third
    assert judged(0.9, 0.9, 1.0) == (True, 1.0)


def test_rounds_give_their_lower_quartile() -> None:
    assert timed("a", [9.0, 1.0, 3.0, 2.0, 50.0]).time == 2.0


@needs_torch
def test_steps_of_programs_are_measured_on_both_backends(tmp_path: Path) -> None:
    pytest.importorskip("collective_ops_torch._native")
    written = tmp_path / "out.json"
    done = run_program(
        "torch_steps.py", "--scenarios", "groups,fsdp", "--rounds", "1", "--json", str(written)
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(written.read_text())
    assert [row["variant"] for row in rows] == ["ours", "gloo", "ours", "ours, shared", "gloo"]
    assert all(row["ms"] > 0 and row["cpu_ms"] > 0 for row in rows)
    unknown = run_program("torch_steps.py", "--scenarios", "games")
    assert unknown.returncode == 2 and "games" in unknown.stderr


@needs_torch
def test_collectives_through_torch_beside_deepspeed_or_why_not() -> None:
    pytest.importorskip("collective_ops_torch._native")
    arguments = "--ranks 3 --sizes 64 --collectives all_reduce,barrier --seconds 0.01".split()
    done = run_program("torch_backend.py", *arguments)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("all_reduce", "barrier"))]
    assert [row[:2] for row in rows] == [["all_reduce", "64"], ["barrier", "64"]]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    # name, bytes, ours, gloo, ratio, direct; DeepSpeed's two where it can take part
    assert len(rows[1]) == 5 and (len(rows[0]) == 8 or "DeepSpeed is left out: " in done.stdout)
