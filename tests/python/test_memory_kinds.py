"""Small calls where some ranks have shared memory, some private: all must come to the same way of running."""

from __future__ import annotations

import numpy as np
import pytest
from collective_ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    counters,
    empty,
    init_hccl,
    rank,
    reducescatter,
    world_size,
)
from rank_pool import RankPool

# Bytes around the limits of the eager, direct and staged ways.
SIZES = (32, 508, 512, 516, 1024, 4096, 8192, 16384, 32768, 32772, 70_000)


def array(count: int, shared: bool) -> np.ndarray:
    return np.from_dlpack(empty(count)) if shared else np.empty(count, np.float32)


def call_all(kinds: str) -> dict[str, int]:
    init_hccl()
    me, n = rank(), world_size()
    shared = kinds[me] == "s"
    for turn, size in enumerate(SIZES * 3):
        count = size // 4 // n * n
        generators = [np.random.default_rng([turn, r]) for r in range(n)]
        values = [generator.integers(-99, 99, count).astype(np.float32) for generator in generators]
        total = np.sum(values, axis=0)

        data = array(count, shared)
        data[...] = values[me]
        allreduce(data)
        np.testing.assert_array_equal(data, total)

        data[...] = values[me]
        part = array(count // n, shared)
        reducescatter(data, out=part)
        np.testing.assert_array_equal(part, total.reshape(n, -1)[me])

        out = array(count * n, shared)
        data[...] = values[me]
        allgather(data, out)
        np.testing.assert_array_equal(out.reshape(n, -1), values)

        moved = array(count, shared)
        alltoall(moved, data)
        np.testing.assert_array_equal(moved, np.concatenate([v.reshape(n, -1)[me] for v in values]))
    barrier()
    return counters()


@pytest.mark.parametrize("kinds", ["sp", "ps", "ssps", "pspp", "pppp"])
def test_ranks_with_different_memory_agree(rank_pool: RankPool, kinds: str) -> None:
    for counted in rank_pool.run(call_all, len(kinds), (kinds,)):
        assert counted["direct_calls"] == 0


def test_small_calls_on_shared_memory_copy_nothing(rank_pool: RankPool) -> None:
    for counted in rank_pool.run(call_all, 2, ("ss",)):
        assert counted["direct_calls"] > counted["staged_calls"] + counted["inline_calls"]
