"""Many random collectives in random groups, exact and without a trace; and that a spoiled one is noticed."""

from __future__ import annotations

import os
import time
from typing import Any

import collective_ops as ops
import numpy as np
import pytest
from mixed_calls import KINDS, Mixed
from rank_pool import RankPool

pytest.importorskip("torch")

SEED = 20_260


def held() -> tuple[int, int, int]:
    """Descriptors, threads, resident KiB."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def soak(calls: int) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    ops.init_hccl(timeout=120)
    mixed = Mixed(SEED)
    before = held()
    for number in range(calls):
        if number == calls // 4:
            mixed.close()  # so that both measurements see the group of all ranks alone
            ops.barrier()
            before = held()
        wrong = mixed.step()
        assert wrong is None, f"call {number}: {wrong}"
    mixed.close()
    ops.barrier()
    return before, held(), mixed.made


def check_growth(results: list, kib: int) -> None:
    for before, after, made in results:
        assert made > 0
        assert after[0] <= before[0], "descriptors"
        assert after[1] <= before[1], "threads"
        assert after[2] - before[2] < kib, "memory"


def test_a_thousand_calls_in_random_groups(rank_pool: RankPool) -> None:
    check_growth(rank_pool.run(soak, 4, (1000,), timeout=120), 16 * 1024)


@pytest.mark.slow
def test_a_hundred_thousand_calls_in_random_groups(rank_pool: RankPool) -> None:
    began = time.monotonic()
    results = rank_pool.run(soak, 8, (100_000,), timeout=1800)
    print(f"100,000 calls on 8 ranks, {results[0][2]} groups: {time.monotonic() - began:.0f} s, {results}")
    check_growth(results, 16 * 1024)


class SpoiledWork:
    def __init__(self, work: Any, spoil: Any) -> None:
        self._work, self._spoil = work, spoil

    def wait(self, timeout: Any) -> None:
        self._work.wait(timeout)
        self._spoil()


class SpoiledCommunicator:
    """A core with a defect: of one collective the last element of the result has a wrong bit."""

    def __init__(self, inner: Any, collective: str) -> None:
        self._inner, self._collective = inner, collective

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "exchange"):
            return method

        def call(*arguments: Any) -> Any:
            collective = arguments[0] if name == "exchange" else name
            out = arguments[{"all_reduce": 0, "broadcast": 0, "exchange": 2}.get(name, 1)]
            work = method(*arguments)
            if collective != self._collective or out is None:
                return work
            if work is None:
                return spoil(out)
            return SpoiledWork(work, lambda: spoil(out))

        return call


def spoil(array: Any) -> None:
    if hasattr(array, "untyped_storage"):
        import torch

        array = array.view(torch.uint8).numpy() if array.numel() else ()
    view = np.asarray(array).reshape(-1).view(np.uint8)
    if view.size:
        view[-1] ^= 1


def noticed() -> dict[str, int]:
    """Wrong results seen on this rank, for each kind of call whose collective is spoiled."""
    ops.init_hccl(timeout=120)
    inner, found = ops._api._group, {}
    collectives = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
    collectives |= {"alltoall": "all_to_all", "reducescatter_counts": "reduce_scatter_v"}
    collectives |= {"allgather_uneven": "all_gather_v", "alltoall_splits": "all_to_all_v"}
    for kind in KINDS:
        if kind == "barrier":
            continue
        collective = collectives.get(kind, kind.replace("_uneven", "_v"))
        for defect in (None, collective):
            ops._api._group = SpoiledCommunicator(inner, defect) if defect else inner
            mixed = Mixed(SEED, (kind,), groups=0)
            wrong = sum(mixed.step() is not None for _ in range(30))
            ops._api._group = inner
            if defect is None:
                assert wrong == 0, kind
            else:
                found[kind] = wrong
    return found


def test_each_collective_is_noticed_when_spoiled(rank_pool: RankPool) -> None:
    results = rank_pool.run(noticed, 3, timeout=120)
    assert set(results[0]) == set(KINDS) - {"barrier"}
    for kind in results[0]:
        assert sum(found[kind] for found in results) >= 10, (kind, results)
