"""A part of PyTorch's own distributed tests on our backend; tests/torch_suite/run.py runs all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import network_hosts
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytest.importorskip("collective_ops_torch._native")

RUNNER = Path(__file__).resolve().parents[1] / "torch_suite/run.py"


def passed(tmp_path: Path, pattern: str, ranks: int, backend: str = "collective_ops", hosts: int = 1) -> int:
    """How many tests passed; fails where one did not."""
    output = tmp_path / "results.json"
    command = [
        sys.executable,
        str(RUNNER),
        "--ranks",
        str(ranks),
        "--backends",
        backend,
        "--hosts",
        str(hosts),
    ]
    command += ["-k", pattern, "--json", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    states = json.loads(output.read_text())[str(ranks)][backend]
    return list(states.values()).count("passed")


@pytest.mark.parametrize(("pattern", "expected"), [("all_reduce_sum", 4), ("all_to_all", 8), ("isend", 3)])
def test_part_of_the_suite(tmp_path: Path, pattern: str, expected: int) -> None:
    assert passed(tmp_path, pattern, ranks=2) >= expected


@pytest.mark.skipif(bool(network_hosts.unsupported()), reason=network_hosts.unsupported())
def test_part_of_the_suite_over_two_hosts(tmp_path: Path) -> None:
    assert passed(tmp_path, "all_gather", ranks=4, hosts=2) >= 8


@pytest.mark.slow
def test_the_suite_under_an_alias(tmp_path: Path) -> None:
    assert passed(tmp_path, "barrier", ranks=3, backend="collective_ops_alias") >= 5
