"""Fixtures for all Python tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Ready-made ranks, with PyTorch imported where it is installed. See rank_pool.py."""
    pool = RankPool(with_torch=importlib.util.find_spec("torch") is not None)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def plain_rank_pool() -> Iterator[RankPool]:
    """Ready-made ranks in which nobody has imported PyTorch."""
    pool = RankPool(with_torch=False)
    yield pool
    pool.close()
