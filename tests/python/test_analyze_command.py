"""The command `collective-ops analyze`: exit codes, texts, and what a run that fails leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from collective_ops import analyze, cli
from made_up_profiles import analyzed, training_job


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    training_job(folder, ranks=2, steps=3)
    assert cli.main(["analyze", "cluster", "-d", str(folder), "-m", "analysis"]) == analyze.COMPLETE
    assert "slow ranks: none" in capsys.readouterr().out
    assert (folder / "cluster_analysis_output" / "summary.csv").exists()
    (folder / "rank1.json").unlink()
    assert cli.main(["analyze", "cluster", "-d", str(folder), "--json"]) == analyze.PARTIAL
    assert json.loads(capsys.readouterr().out)["missing_ranks"] == [1]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["-d", "nowhere"], "there is no file or directory nowhere"),
        (["-d", ".", "-m", "fly"], "unknown mode fly; there are all, step_trace"),
        (["-d", "."], "no profile that can be used"),
    ],
)
def test_nothing_that_can_be_used(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["analyze", "cluster", *arguments]) == analyze.NOTHING
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_mode_without_its_data_says_what_it_needs(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=2, steps=2)
    with pytest.raises(ValueError, match="communication_matrix.json of Ascend profiles"):
        analyzed(tmp_path / "p", "communication_matrix")
    assert not (tmp_path / "p_results").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=1, steps=2)
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OSError, match="choose another place with -o"):
        analyze.cluster(tmp_path / "p", "all", tmp_path / "closed")


def test_an_interrupted_analysis_writes_nothing(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=3, steps=2)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyze.cluster(tmp_path / "p", output=tmp_path / "out", progress=interrupt)
    assert not (tmp_path / "out").exists()


def test_every_mode_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["analyze", "cluster", "--help"])
    text = capsys.readouterr().out
    assert all(name in text and help_text in text for name, help_text in analyze.modes().items())


def test_a_terminal_gets_a_bar_that_is_gone_in_the_end(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=3, steps=2)
    program = (
        "import sys; from collective_ops import analyze\n"
        "class Soon(analyze._Progress):\n"
        "    def __init__(self): super().__init__(); self.next = 0\n"
        "analyze._Progress = Soon\n"
        "from collective_ops import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "analyze", "cluster", "-d", str(tmp_path / "p")],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    assert process.wait(timeout=120) == analyze.COMPLETE
    assert re.search(rb"\[#*\.*\] read \d of 3 profiles", shown)
    assert shown.endswith(b"\r\x1b[K")


def test_elsewhere_it_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    progress = analyze._Progress()
    progress(1, 4)
    assert capsys.readouterr().err == ""  # not before ten seconds
    progress.next = 0
    progress(2, 4)
    progress.close()
    assert capsys.readouterr().err == "read 2 of 4 profiles\n"
    assert progress.bar(2, 4) == "[###############...............]"
