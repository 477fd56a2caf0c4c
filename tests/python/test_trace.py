"""collective_ops.trace above the core: what it passes down, and what it makes of the answer."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import collective_ops
import pytest
from collective_ops import trace

FOUND = {
    "job": "digits",
    "world_size": 2,
    "calls": 5,
    "complete": True,
    "missing_ranks": [],
    "other_jobs": [],
    "text": "all is well\n",
}


@pytest.fixture
def calls_of_core(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands for the core; the list holds the arguments of each call."""
    calls: list[tuple[Any, ...]] = []

    def merge_trace(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        incomplete = {"complete": False, "missing_ranks": [1], "text": "missing: rank 1\n"}
        return FOUND | (incomplete if arguments[2] == "half" else {})

    monkeypatch.setattr(collective_ops, "_core", SimpleNamespace(merge_trace=merge_trace), raising=False)
    return calls


def test_hash_is_that_of_the_file_names() -> None:
    assert trace.job_hash("") == "cbf29ce484222325"
    assert trace.job_hash("digits") == "620301a9632d813f"


def test_merge_passes_its_arguments_down(
    calls_of_core: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    summary = trace.merge("runs")
    trace.merge(Path("runs"), Path("out.json"), job="digits", keep=True)
    assert calls_of_core == [
        (["runs"], str(Path("runs/comm_trace.json")), "", False),
        (["runs"], "out.json", "digits", True),
    ]
    assert (summary.output, summary.job, summary.calls) == (Path("runs/comm_trace.json"), "digits", 5)
    assert summary.complete
    assert not caplog.records


def test_merge_warns_of_what_is_missing(
    calls_of_core: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        summary = trace.merge("runs", job="half")
    assert calls_of_core and not summary.complete
    assert summary.missing_ranks == (1,)
    assert [record.getMessage() for record in caplog.records] == ["missing: rank 1"]


def test_merge_job_does_nothing_where_a_rank_has_merged(
    calls_of_core: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTIVE_OPS_TRACE_DIR", str(tmp_path))
    (tmp_path / f"comm_trace.{trace.job_hash('other')}.rank0.bin").touch()
    assert trace.merge_job("digits") is None
    assert calls_of_core == []
    (tmp_path / f"comm_trace.{trace.job_hash('digits')}.rank3.bin").touch()
    assert trace.merge_job("digits") == tmp_path / "comm_trace.json"
    assert calls_of_core == [([str(tmp_path)], str(tmp_path / "comm_trace.json"), "digits", False)]
