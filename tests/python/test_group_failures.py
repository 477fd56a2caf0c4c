"""What goes wrong in groups of some ranks: it is named, ends nobody else's group, and hangs nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import collective_ops as ops
import numpy as np
import pytest
from collective_ops import (
    CollectiveTimeoutError,
    GroupBrokenError,
    NotInitializedError,
    PeerLostError,
    RendezvousError,
)
from rank_pool import RankPool, report
from test_groups import error_of


def a_member_dies() -> tuple[str, float]:
    ops.init_hccl()
    rank = ops.rank()
    groups = {
        name: ops.new_group(ranks, name)
        for name, ranks in (("low", [0, 1]), ("high", [3, 2]))
        if rank in ranks
    }
    mixed = ops.new_group([1, 2], "mixed") if rank in (1, 2) else None
    report("ready")
    if rank == 3:
        signal.pause()
    if rank == 2:
        text = error_of(PeerLostError, groups["high"].barrier)
        when = time.monotonic()
        assert "was broken by an earlier failure" in error_of(GroupBrokenError, groups["high"].barrier)
    else:
        text, when = error_of(PeerLostError, ops.barrier) if rank == 0 else "", time.monotonic()
    if mixed is not None:
        assert mixed.allreduce(np.array([rank])).tolist() == [3]
    if rank in (0, 1):
        assert groups["low"].allreduce(np.array([rank])).tolist() == [1]
    return text, when


def test_a_members_death_breaks_its_groups_alone(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(a_member_dies, 4)
    for rank in range(4):
        assert ranks.receive(rank) == "ready"
    os.kill(ranks.pids[3], signal.SIGKILL)
    killed = time.monotonic()
    outcomes = ranks.wait()
    assert [outcome.ok for outcome in outcomes] == [True, True, True, False], "\n".join(map(str, outcomes))
    text, when = outcomes[2].value
    assert f"rank 3 (pid {ranks.pids[3]}) was lost: killed by signal 9" in text
    assert 'while rank 2 was in call #1 (barrier) of group "high" of ranks 3,2' in text
    assert when - killed < 2.0
    assert f"rank 3 (pid {ranks.pids[3]}) was lost" in outcomes[0].value[0]


def a_member_does_not_come(missing: int) -> str:
    ops.init_hccl()
    text = ""
    if ops.rank() != missing:
        text = error_of(RendezvousError, ops.new_group, [2, 0, 1], name="tp", connect_timeout=1.5)
    ops.barrier()
    if ops.rank() == missing:  # late: the others have given up, and say so
        text = error_of(RendezvousError, ops.new_group, [2, 0, 1], name="tp", connect_timeout=30)
    ops.barrier()
    assert ops.new_group([2, 0, 1], name="tp").allreduce(np.ones(2)).tolist() == [3, 3]
    return text


@pytest.mark.parametrize("missing", [1, 2])
def test_a_member_that_does_not_come_is_named(rank_pool: RankPool, missing: int) -> None:
    texts = rank_pool.run(a_member_does_not_come, 3, (missing,))
    for text in texts:
        assert 'creating group "tp" of ranks 2,0,1: ' in text
        assert f"rank {missing} did not come" in text
    assert "gave up" in texts[missing] or missing == 1


def dies_while_others_wait_for_it() -> str:
    ops.init_hccl()
    report("ready")
    if ops.rank() == 0:
        signal.pause()
    return error_of(PeerLostError, ops.new_group, [0, 1, 2], connect_timeout=30)


def test_a_death_ends_the_wait_for_a_group(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(dies_while_others_wait_for_it, 3)
    for rank in range(3):
        ranks.receive(rank)
    os.kill(ranks.pids[0], signal.SIGKILL)
    outcomes = ranks.wait(timeout=20)
    for outcome in outcomes[1:]:
        assert "creating group of ranks 0,1,2: " in outcome.value, str(outcome)
        assert f"rank 0 (pid {ranks.pids[0]}) was lost: killed by signal 9" in outcome.value


def crossed_calls() -> str:
    ops.init_hccl()
    a, b = ops.new_group([0, 1], "a", timeout=2), ops.new_group([0, 1], "b", timeout=2)
    text = error_of(CollectiveTimeoutError, (a if ops.rank() == 0 else b).allreduce, np.ones(4))
    ops.barrier()
    return text


def test_calls_crossed_between_groups_say_where_the_others_are(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(crossed_calls, 2)
    call = "in call #1 (all_reduce of 4 float64, op sum) of group"
    assert "rank 0 waited " in first and f'{call} "a" of ranks 0,1 for rank 1' in first
    assert "; meanwhile it " in first and f'{call} "b" of ranks 0,1' in first
    assert "rank 1 waited " in second and f'{call} "a" of ranks 0,1' in second.split("; meanwhile it ")[1]
    assert "in an order that fits" in first and "in an order that fits" in second


def aborted() -> tuple[str, float, float]:
    ops.init_hccl()
    group = ops.new_group([1, 0], "slow")
    timers = [0.0]
    if ops.rank() == 0:

        def stop() -> None:
            timers[0] = time.monotonic()
            group.abort("the test says so")

        thread = threading.Timer(0.2, stop)
        thread.start()
        text = error_of(GroupBrokenError, group.barrier)
        ended = time.monotonic()
        thread.join()
    else:
        ended = 0.0
        ops.barrier()
        text = error_of(GroupBrokenError, group.barrier)
    if ops.rank() == 0:
        ops.barrier()
    return text, timers[0], ended


def test_abort_from_another_thread(rank_pool: RankPool) -> None:
    (first, at, ended), (second, _, _) = rank_pool.run(aborted, 2)
    for text in (first, second):
        assert 'rank 0 aborted group "slow" of ranks 1,0: the test says so' in text
    print(f"freed after {(ended - at) * 1e3:.1f} ms")
    assert ended - at < 2.0


def forks(how: str) -> int:
    ops.init_hccl()
    group = ops.new_group([1, 0])
    group.allreduce(np.ones(3))
    child = os.fork()
    if child == 0:
        code = 3
        try:
            if how == "calls":
                group.barrier()
            elif how == "makes":
                group.new_group([0, 1])
            elif how == "closes":
                group.close()
                code = 0
            else:
                del group
                gc.collect()
                code = 0
        except NotInitializedError as error:
            code = 0 if "fork" in str(error) else 4
        os._exit(code)
    status_of_child = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert group.allreduce(np.ones(3)).tolist() == [2, 2, 2]
    return status_of_child


@pytest.mark.parametrize("how", ["calls", "makes", "closes", "drops"])
def test_a_forked_child_leaves_groups_alone(rank_pool: RankPool, how: str) -> None:
    assert rank_pool.run(forks, 2, (how,)) == [0, 0]
