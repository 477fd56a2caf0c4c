"""The command line: help, subcommands, and what reaches the functions behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import collective_ops
import pytest
from collective_ops import cli, trace


def summary(complete: bool) -> trace.MergeSummary:
    return trace.MergeSummary(Path("t.json"), "job", 2, 7, complete, (), (), "7 calls of 2 ranks\n")


@pytest.mark.parametrize("complete", [True, False])
def test_trace_merge(
    complete: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen = []
    monkeypatch.setattr(
        trace, "merge", lambda *given, **named: seen.append((given, named)) or summary(complete)
    )
    arguments = ["trace", "merge", str(tmp_path), "-o", "out.json", "--keep", "--job", "j1"]
    assert cli.main(arguments) == (0 if complete else 1)
    assert seen == [((tmp_path, Path("out.json")), {"job": "j1", "keep": True})]
    assert capsys.readouterr().out == "7 calls of 2 ranks\n"


@pytest.mark.parametrize("error", [ValueError("nothing to merge"), OSError("no such directory")])
def test_errors_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_given: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr(trace, "merge", fails)
    assert cli.main(["trace", "merge"]) == 1
    assert capsys.readouterr().err == f"collective-ops trace: {error}\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "collective_ops", "doctor", "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("arguments", [[], ["trace"], ["fly"], ["run", "--nproc_per_node", "0", "x.py"]])
def test_incomplete_commands_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: collective-ops" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["run", "--nproc_per_node", "two", "x.py"], "two: expected a whole number from 1 on"),
        (["run", "--nprocs", "2", "x.py"], "usage: collective-ops run"),
        (["trace", "merge", "--dry"], "unrecognized arguments: --dry"),
    ],
)
def test_mistaken_options_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"collective-ops {collective_ops.__version__}\n"


def test_python_m_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "collective_ops", "--version"],
        env={**os.environ, "PYTHONPATH": str(Path(collective_ops.__path__[0]).parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, f"collective-ops {collective_ops.__version__}\n"), run.stderr


def test_merging_where_there_is_nothing_to_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", "merge", str(tmp_path / "gone")]) == 1
    assert f"there is no directory {tmp_path / 'gone'}" in capsys.readouterr().err
    monkeypatch.setenv("COLLECTIVE_OPS_TRACE_DIR", str(tmp_path))
    assert cli.main(["trace", "merge"]) == 1
    assert f"no usable comm_trace.*.rank*.bin in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "comm_trace.json").write_text("{}")
    assert cli.main(["trace", "merge"]) == 1
    assert f"{tmp_path / 'comm_trace.json'} is made already" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert "run " in printed and "trace " in printed
