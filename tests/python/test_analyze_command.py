"""The command `collective-ops analyze`: exit codes, texts, and what a run that fails leaves."""

from __future__ import annotations

import json
import os
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
