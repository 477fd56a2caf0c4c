"""The command line: help, subcommands, and what reaches the functions behind them."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("arguments", [[], ["trace"], ["fly"], ["run", "--nproc_per_node", "0", "x.py"]])
def test_incomplete_commands_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: collective-ops" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert "run " in printed and "trace " in printed
