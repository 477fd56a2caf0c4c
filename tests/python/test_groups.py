"""Groups of some ranks, on real processes: numbers, threads, what they cost and leave, status, trace."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import collective_ops as ops
import numpy as np
import pytest
from collective_ops import (
    CollectiveError,
    InvalidArgumentError,
    NotInitializedError,
    jobs,
    status,
)
from example_ranks import run_example
from rank_pool import RankPool, report
from test_api import open_descriptors, resident_kib


def error_of(
    kind: type[CollectiveError], function: Callable[..., Any], *arguments: Any, **keywords: Any
) -> str:
    with pytest.raises(kind) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


# --- Which ranks, and in which order ---------------------------------------------------------------


def halves_at_once() -> tuple[float, float]:
    ops.init_hccl()
    half = ops.new_group([0, 1] if ops.rank() < 2 else [2, 3])
    mine = np.full(5, ops.rank() + 1.0)
    world = np.full(5, ops.rank() + 1.0)
    half.allreduce(mine)
    ops.allreduce(world)
    return mine[4], world[4]


def test_two_halves_make_their_groups_at_once(rank_pool: RankPool) -> None:
    assert rank_pool.run(halves_at_once, 4) == [(3, 10), (3, 10), (7, 10), (7, 10)]


def every_collective_of_an_unsorted_list() -> None:
    ops.init_hccl()
    if ops.rank() in (0, 2):
        message = error_of(InvalidArgumentError, ops.new_group, [3, 1], name="odd")
        assert f"this is rank {ops.rank()}, which is not in it; members alone create a group" in message
        assert "[3, 1]" in message
        ops.barrier()
        return
    group = ops.new_group([3, 1], name="odd")
    me, world = group.rank, ops.rank()
    assert (group.size, group.ranks, group.name, group.ranks[me]) == (2, [3, 1], "odd", world)
    assert repr(group) == 'group "odd" of ranks 3,1'

    assert ops.allreduce(np.full(3, float(world)), "avg", group=group).tolist() == [2.0] * 3
    assert ops.allreduce(np.arange(200_000.0) * me, group=group)[199_999] == 199_999.0
    for root, source in ((0, 3), (1, 1)):
        large = np.full(1_200_000, world, np.uint8)  # 9 MB of longs and such: more than any slot
        assert (group.broadcast(large, root) == source).all()
        assert (ops.broadcast(np.full(2, world), src=source, group=group) == source).all()
    assert "none of the ranks [3, 1] of the world" in error_of(
        InvalidArgumentError, group.broadcast, large, src=0
    )
    wrong = error_of(InvalidArgumentError, group.broadcast, large, 3)
    assert "root 3 is not a rank of this group (0 to 1)" in wrong and "ranks 3,1" in wrong
    assert group.allgather(np.array([world])).ravel().tolist() == [3, 1]
    assert group.reducescatter(np.array([world, 10 * world])).tolist() == [[4], [40]][me]
    total = group.reduce(np.array([world]), root=1)
    assert total.tolist() == ([4] if me == 1 else [3])
    gathered = group.gather(np.array([world]), root=0)
    assert gathered.ravel().tolist() == [3, 1] if me == 0 else gathered is None
    part = group.scatter(np.zeros(1), np.array([7.0, 8.0]) if me == 1 else None, root=1)
    assert part.tolist() == [7.0 + me]
    assert group.alltoall(None, np.array([10 * world, 10 * world + 1])).tolist() == [30 + me, 10 + me]
    work = group.barrier(async_op=True)
    work.wait()
    assert group.counters()["calls"] > 10
    assert ops.counters()["calls"] == 0

    # Mistakes of one kind on all members leave the group whole.
    error_of(InvalidArgumentError, group.reducescatter, np.zeros(3))
    assert "give what new_group() has returned" in error_of(InvalidArgumentError, ops.barrier, group="odd")
    if me == 1:
        assert group.new_group([1], name="alone").ranks == [1]
    group.barrier()
    group.close()
    assert "was closed" in error_of(NotInitializedError, group.barrier)
    ops.barrier()


def test_every_collective_of_an_unsorted_list(rank_pool: RankPool) -> None:
    rank_pool.run(every_collective_of_an_unsorted_list, 4)


def lists_that_cannot_be() -> None:
    ops.init_hccl()
    for ranks, text in [
        ([], "the list is empty"),
        ([ops.rank(), ops.rank()], "stands there twice"),
        ([ops.rank(), 9], "9 is no rank of the group, which has 0 to 1"),
        ([ops.rank(), 2**40], "the world has ranks 0 to 1"),
        ("ab", "give a list of whole numbers"),
        (5, "give a list of whole numbers"),
    ]:
        assert text in error_of(InvalidArgumentError, ops.new_group, ranks)
    assert "give a str" in error_of(InvalidArgumentError, ops.new_group, [0, 1], name=3)
    assert "128 characters" in error_of(InvalidArgumentError, ops.new_group, [0, 1], name="n" * 128)
    everyone = ops.new_group()
    assert everyone.ranks == [0, 1]
    everyone.barrier()


def test_lists_that_cannot_be(rank_pool: RankPool) -> None:
    rank_pool.run(lists_that_cannot_be, 2)


def buckets_of_two_groups() -> list[float]:
    import torch

    ops.init_hccl()
    rank = ops.rank()
    rows = ops.new_group([0, 1] if rank < 2 else [2, 3], name="rows")
    columns = ops.new_group([rank % 2, rank % 2 + 2], name="columns")
    gradients = [torch.full((1000,), float(rank)), torch.full((70_000,), 2.0 * rank)]
    for group in (rows, columns):
        bucket = ops.GradientBucket(group=group)
        for gradient in gradients:
            bucket.add(gradient)
        bucket.allreduce()
        assert bucket.stats.calls == 1
    with pytest.raises(
        ops.MismatchError, match=rf"ranks \[{columns.ranks[1]}\] .* than rank {columns.ranks[0]}"
    ):
        bucket.add(torch.ones(1 + columns.rank))
        bucket.allreduce()
    columns.barrier()
    return [gradients[0][0].item(), gradients[1][69_999].item()]


def test_buckets_of_two_groups(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    assert rank_pool.run(buckets_of_two_groups, 4) == [[6, 12]] * 4


# --- Several threads -------------------------------------------------------------------------------


def threads_with_groups_of_their_own(threads: int, calls: int) -> list[str]:
    ops.init_hccl()
    rank, size = ops.rank(), ops.world_size()
    problems: list[str] = []

    def work(number: int) -> None:
        try:
            ranks = [(number + i) % size for i in range(size)]
            group = ops.new_group(ranks, name=f"thread {number}")
            private = np.empty(300, np.float32)
            shared = np.asarray(ops._core.SharedArray([30_000], "float32"))
            for call in range(calls):
                array = shared if call % 4 == 0 else private
                array[:] = rank + number * call
                group.allreduce(array)
                expected = size * (size - 1) / 2 + size * number * call
                if (array != expected).any():
                    problems.append(f"thread {number}, call {call}: {array[0]} is not {expected}")
        except BaseException as error:
            problems.append(f"thread {number}: {error!r}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    ops.barrier()
    return problems


def test_threads_with_groups_of_their_own(rank_pool: RankPool) -> None:
    assert rank_pool.run(threads_with_groups_of_their_own, 3, (4, 200)) == [[]] * 3


def two_threads_on_one_group() -> int:
    """Calls of one kind, so that it does not matter which thread's comes first."""
    ops.init_hccl()
    group = ops.new_group([1, 0])
    wrong = []

    def work() -> None:
        for _ in range(200):
            if group.allreduce(np.ones(100, np.int32)).tolist() != [2] * 100:
                wrong.append(1)

    running = [threading.Thread(target=work) for _ in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return len(wrong) + group.counters()["calls"]


def test_two_threads_on_one_group(rank_pool: RankPool) -> None:
    assert rank_pool.run(two_threads_on_one_group, 2) == [400, 400]


# --- What they cost and leave ----------------------------------------------------------------------


def shared_kib() -> int:
    """What the groups' memory has taken of the system, seen from this process."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd:collective-ops-control" in os.readlink(f"/proc/self/fd/{name}"):
                total += os.stat(f"/proc/self/fd/{name}").st_blocks // 2
        except OSError:
            continue
    return total


def make_and_destroy(rounds: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    ops.init_hccl()
    rank = ops.rank()

    def one(number: int) -> None:
        kind = number % 3
        if kind == 2 and rank == 3:
            return
        ranks = [[0, 1, 2, 3], [0, 2] if rank % 2 == 0 else [3, 1], [2, 1, 0]][kind]
        group = ops.new_group(ranks, name=f"round {number % 7}")
        result = group.allreduce(np.full(100, rank))
        assert (result == sum(ranks)).all()
        work = group.allreduce(np.full(5000, rank), async_op=True)
        assert (work.wait() == sum(ranks)).all()

    def measured() -> tuple[int, int, int]:
        gc.collect()
        ops.barrier()
        return (
            open_descriptors(),
            threading.active_count() + len(os.listdir("/proc/self/task")),
            resident_kib(),
        )

    for number in range(60):
        one(number)
    before = measured()
    for number in range(rounds):
        one(number)
    return before, measured()


def test_five_hundred_rounds_leave_nothing(rank_pool: RankPool) -> None:
    for before, after in rank_pool.run(make_and_destroy, 4, (500,), timeout=120):
        assert after[0] == before[0] and after[1] == before[1]
        assert after[2] - before[2] < 2048, f"{after[2] - before[2]} KiB more"


def many_at_once(count: int) -> tuple[int, int, bool]:
    ops.init_hccl()
    world, resident = shared_kib(), resident_kib()
    groups = [ops.new_group([1, 3, 0, 2]) for _ in range(count)]
    ops.barrier()
    cost = shared_kib() - world, resident_kib() - resident
    good = all(group.allreduce(np.array([number])) == 4 * number for number, group in enumerate(groups))
    return *cost, good


def test_an_idle_group_costs_little(rank_pool: RankPool) -> None:
    for shared, resident, good in rank_pool.run(many_at_once, 4, (200,), timeout=120):
        print(f"{shared / 200:.1f} KiB shared, {resident / 200:.1f} KiB resident in each process per group")
        assert good
        assert shared / 200 <= 64
        assert resident / 200 <= 128


def goes_in_any_order() -> list[float]:
    results = []
    for _ in range(3):
        ops.init_hccl()
        kept = ops.new_group([1, 0])
        inner = kept.new_group([0, 1])
        kept.close()
        results.append(float(inner.allreduce(np.ones(2))[0]))
        ops.finalize()
        assert "was closed" in error_of(NotInitializedError, inner.barrier)
    return results


def test_finalize_closes_groups_and_init_may_follow(rank_pool: RankPool) -> None:
    assert rank_pool.run(goes_in_any_order, 2) == [[2, 2, 2]] * 2


# --- What others see -------------------------------------------------------------------------------


def waits_in_a_group() -> None:
    ops.init_hccl()
    pair = ops.new_group([3, 1], name="tp") if ops.rank() in (1, 3) else None
    ops.barrier()
    report("ready")
    if ops.rank() == 3:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.pause()
    if pair is not None:
        pair.allreduce(np.ones(7))


def test_status_shows_each_group(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(waits_in_a_group, 4)
    for rank in range(4):
        ranks.receive(rank)
    deadline = time.monotonic() + 30
    while True:
        found = [group for group in jobs.find_groups() if group.belongs_to(ranks.pids[1])]
        if len(found) == 2 and found[1].ranks[1].activity == "waiting":
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    world, pair = found
    assert (world.is_world, len(world.ranks), world.label) == (True, 4, "")
    assert pair.job == world.job and pair.label == 'group "tp" of ranks 3,1'
    assert [rank.number for rank in pair.ranks] == [3, 1]
    assert [rank.pid for rank in pair.ranks] == [ranks.pids[3], ranks.pids[1]]
    (finding,) = status.findings(pair)
    assert finding.startswith("Rank 1 waits in call #1 (all_reduce of 7 float64, op sum)")
    assert "for rank 3, which has made no call yet and is outside" in finding
    text = status.describe(pair)
    assert text.splitlines()[0] == f'job {status.short_name(pair.job)!r}, group "tp" of ranks 3,1: 2 ranks, waiting'
    assert text.splitlines()[3].split()[:3] == ["1", str(ranks.pids[1]), "waiting"]
    assert 'group "tp" of ranks 3,1' in status.overview(found)
    os.kill(ranks.pids[3], signal.SIGUSR1)
    ranks.results()


def traced() -> None:
    ops.init_hccl()
    rank = ops.rank()
    pair = ops.new_group([2, 1], name="odd couple") if rank else None

    def work() -> None:
        for _ in range(50):
            ops.allreduce(np.ones(10))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(50):
        if pair is not None:
            pair.broadcast(np.ones(10), root=0)
            pair.barrier()
    thread.join()
    if rank == 1:
        ops.finalize()  # leaves the groups in any order
    del pair


def test_trace_names_groups(rank_pool: RankPool, tmp_path: Path) -> None:
    rank_pool.run(traced, 3, env={"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(tmp_path)})
    assert [path.name for path in tmp_path.iterdir()] == ["comm_trace.json"]
    trace = json.loads((tmp_path / "comm_trace.json").read_text())
    world, pair = trace["distributedInfo"]["pg_config"]
    assert (world["pg_name"], world["ranks"]) == ("0", [0, 1, 2])
    assert (pair["pg_desc"], pair["ranks"], pair["pg_size"]) == ("odd couple", [2, 1], 2)
    calls = [event for event in trace["traceEvents"] if event.get("cat") == "collective"]
    for rank in range(3):
        own = [event for event in calls if event["pid"] == rank and event["tid"] == 0]
        assert [event["args"]["Seq"] for event in own] == list(range(1, 51))
        members = [event for event in calls if event["pid"] == rank and event["tid"] == int(pair["pg_name"])]
        assert [event["args"]["Seq"] for event in members] == (list(range(1, 101)) if rank else [])
        for event in members:
            assert event["args"]["Process Group Description"] == "odd couple"
            assert event["args"]["Process Group Ranks"] == "[2, 1]"
            assert event["args"].get("root", 2) == 2  # by its rank in the world
            assert set(event["args"].get("peer_waited_us", {})) <= {"1", "2"}


# --- The example -----------------------------------------------------------------------------------


def test_the_example_of_tensor_and_data_parallel_groups() -> None:
    outputs = run_example("tensor_parallel_groups.py", 4)
    assert (
        outputs[0].startswith("4 ranks as 2 rows of 2, 20 steps: weights differ") and outputs[1:] == [""] * 3
    )
