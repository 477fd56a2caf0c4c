"""examples/parallel_gpt.py: each way of training gives the parameters of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import parallel_gpt  # noqa: E402
from rank_pool import RankPool  # noqa: E402


@pytest.mark.parametrize("way", ["data", "fsdp", "tensor", "pipeline"])
def test_trains_as_one_process(rank_pool: RankPool, way: str) -> None:
    assert rank_pool.run(parallel_gpt.main, 2, (["--ways", way, "--steps", "3"],), timeout=120) == [0, 0]
