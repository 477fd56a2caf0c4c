"""Small calls where some ranks have shared memory, some private: all must come to the same way of running."""

from __future__ import annotations

import numpy as np
import pytest
from collective_ops import (
    MismatchError,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    counters,
    empty,
    gather,
    init_hccl,
    rank,
    reduce,
    reducescatter,
    scatter,
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


def call_with_changing_memory() -> None:
    """More calls than there are announcements at once, so that what an earlier one has left would be seen."""
    init_hccl()
    me, n = rank(), world_size()
    chance = np.random.default_rng(me)
    for turn in range(200):
        count = [12, 1000, 3000, 6000, 12000][turn % 5] // n * n
        root = turn // 5 % n
        values = [
            np.random.default_rng([turn, r]).integers(-99, 99, count).astype(np.float32) for r in range(n)
        ]
        data, out = array(count, chance.random() < 0.5), array(count * n, chance.random() < 0.5)
        total = np.sum(values, axis=0)

        data[...] = values[me]
        out[...] = 0
        allgather(data, out)
        np.testing.assert_array_equal(out.reshape(n, -1), values, f"all_gather {turn}")

        data[...] = values[me]
        out[...] = 0
        gather(data, out if me == root else None, root=root)
        if me == root:
            np.testing.assert_array_equal(out.reshape(n, -1), values, f"gather {turn}")
        data[...] = 0  # whoever reads it later sees it

        data[...] = values[me]
        reduce(data, root=root)
        if me == root:
            np.testing.assert_array_equal(data, total, f"reduce {turn}")
        data[...] = 0

        data[...] = values[me]
        broadcast(data, root=root)
        np.testing.assert_array_equal(data, values[root], f"broadcast {turn}")
        data[...] = 0

        out[...] = np.concatenate(values)
        scatter(data, out if me == root else None, root=root)
        np.testing.assert_array_equal(data, values[me], f"scatter {turn}")
        out[...] = 0
    barrier()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_memory_may_change_from_call_to_call(rank_pool: RankPool, ranks: int) -> None:
    rank_pool.run(call_with_changing_memory, ranks)


def call_rooted(kinds: str) -> tuple[int, int]:
    """Direct calls, and bytes copied, of one call of each kind with a root."""
    init_hccl()
    me, n = rank(), world_size()
    data = array(4096 // n * n, kinds[me] == "s")
    parts = array(data.size, kinds[me] == "s")
    data[...] = parts[...] = me
    barrier()
    before = counters()
    broadcast(data, root=1)
    assert (data == 1).all()
    reduce(data, root=1)
    assert me != 1 or (data == n).all()
    scatter(data[: data.size // n], parts if me == 1 else None, root=1)
    gather(data[: data.size // n], parts if me == 1 else None, root=1)
    after = counters()
    barrier()
    return (
        after["direct_calls"] - before["direct_calls"],
        after["copied_bytes"] - before["copied_bytes"],
    )


def test_with_a_root_each_rank_decides_alone(rank_pool: RankPool) -> None:
    """16 KiB between two ranks: copying costs more than waiting until the memory has been read."""
    half = 4096 // 2 * 4
    whole = 2 * half
    # Rank 1 broadcasts and scatters, rank 0 sends what is reduced and gathered.
    assert rank_pool.run(call_rooted, 2, ("ss",)) == [(4, 0), (4, 0)]
    assert rank_pool.run(call_rooted, 2, ("ps",)) == [(2, whole + half), (2, half)]
    assert rank_pool.run(call_rooted, 2, ("sp",)) == [(2, whole + half), (2, 2 * whole)]


def call_other_collectives() -> str:
    init_hccl(timeout=20)
    data = array(4096, shared=rank() == 0)
    data[...] = 1
    try:
        if rank() == 0:
            gather(data, root=1)
        else:
            broadcast(data, root=1)
        barrier()
    except MismatchError as error:
        return str(error)
    return "nothing was noticed"


def test_a_rank_that_stays_until_it_was_read_notices_another_call(rank_pool: RankPool) -> None:
    for text in rank_pool.run(call_other_collectives, 2):
        assert "gather" in text and "broadcast" in text
