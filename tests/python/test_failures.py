"""What goes wrong on real ranks: each failure is named on every rank, nothing hangs, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import collective_ops
import numpy as np
import pytest
from collective_ops import (
    CollectiveError,
    CollectiveTimeoutError,
    NotInitializedError,
    RendezvousError,
)
from rank_pool import RankPool, report

# From a kill to the exception on the others. The promise is 200 ms on a machine that has time for the ranks;
# here others may use the cores as well. Measured values are printed.
PATIENCE_S = 2.0


def failure_of(function: Any, *arguments: Any, **keywords: Any) -> tuple[str, str]:
    try:
        function(*arguments, **keywords)
    except CollectiveError as error:
        return type(error).__name__, str(error)
    return "none", ""


# --- A rank dies -----------------------------------------------------------------------------------


def reduce_until_a_peer_is_lost(victim: int, where: str) -> tuple[str, str, float, str]:
    """(exception, text, time, exception of the next call); the victim is killed from outside."""
    collective_ops.init_hccl()
    rank = collective_ops.rank()
    values = np.ones(4_000_000 if where == "in a call" else 100, np.float32)
    collective_ops.allreduce(values)
    collective_ops.barrier()
    report("ready")
    if rank == victim and where == "outside":
        signal.pause()
    try:
        while True:
            collective_ops.allreduce(values, "max")
    except CollectiveError as error:
        when = time.monotonic()
        again, text = failure_of(collective_ops.barrier)
        assert str(error).split("\n")[0][:40] in text or again == "PeerLostError", text
        return type(error).__name__, str(error), when, again


@pytest.mark.parametrize("where", ["outside", "in a call"])
def test_a_killed_rank_is_named(rank_pool: RankPool, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    victim = 2
    ranks = rank_pool.start(reduce_until_a_peer_is_lost, 8, (victim, where))
    for rank in range(8):
        ranks.receive(rank)
    killed = time.monotonic()
    os.kill(ranks.pids[victim], signal.SIGKILL)
    outcomes = ranks.wait(timeout=60)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    delays = []
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.ok, outcome
        name, text, when, again = outcome.value
        assert name == "PeerLostError"
        assert "rank 2" in text and str(ranks.pids[victim]) in text
        assert again == "GroupBrokenError"
        delays.append(when - killed)
    with capsys.disabled():
        print(
            f" [from kill to exception, {where}: {1e3 * min(delays):.0f} to {1e3 * max(delays):.0f} ms]",
            end="",
        )
    assert max(delays) < PATIENCE_S


def leave_while_another_waits() -> tuple[str, str]:
    collective_ops.init_hccl()
    rank = collective_ops.rank()
    collective_ops.barrier()
    if rank == 1:
        sys.exit(0)  # orderly, without finalize
    return failure_of(collective_ops.allreduce, np.ones(3))


def test_a_rank_that_leaves_is_named(rank_pool: RankPool) -> None:
    outcomes = rank_pool.start(leave_while_another_waits, 3).wait()
    assert outcomes[1].exit_code == 0
    for rank in (0, 2):
        name, text = outcomes[rank].value
        # A call that begins after another rank has found it out gets the reason of the broken group.
        assert name == "PeerLostError" or name == "GroupBrokenError" and "(peer_lost)" in text, text
        assert "rank 1" in text, text


def leave_in_the_middle_of_asynchronous_work() -> None:
    collective_ops.init_hccl()
    values = [np.ones(50_000, np.float32) for _ in range(20)]
    for part in values:
        collective_ops.allreduce(part, async_op=True)
    # Leaving finishes what was started.


def test_leaving_finishes_what_was_started(rank_pool: RankPool) -> None:
    for outcome in rank_pool.start(leave_in_the_middle_of_asynchronous_work, 4).wait():
        assert outcome.ok and outcome.output == "", outcome


# --- Ranks disagree --------------------------------------------------------------------------------

f32 = np.float32
DISAGREEMENTS = {
    "count": lambda odd: collective_ops.allreduce(np.zeros(11 if odd else 10, f32)),
    "type": lambda odd: collective_ops.allreduce(np.zeros(10, np.int32 if odd else f32)),
    "op": lambda odd: collective_ops.allreduce(np.zeros(10, f32), "max" if odd else "sum"),
    "root": lambda odd: collective_ops.broadcast(np.zeros(10, f32), 1 if odd else 0),
    "collective": lambda odd: (
        collective_ops.barrier() if odd else collective_ops.allreduce(np.zeros(10, f32))
    ),
}


def disagree(field: str, size: int) -> list[tuple[str, str]]:
    """Every rank's first failure; rank 1's call differs in one field."""
    collective_ops.init_hccl()
    collective_ops.allreduce(np.zeros(size, f32))
    odd = collective_ops.rank() == 1
    # A rank whose part was done before the other came learns of it with its next call.
    name, text = failure_of(DISAGREEMENTS[field], odd)
    if name == "none":
        name, text = failure_of(collective_ops.barrier)
    return name, text, failure_of(collective_ops.barrier)[0]


@pytest.mark.parametrize("field", DISAGREEMENTS)
def test_a_call_that_differs_is_named(rank_pool: RankPool, field: str) -> None:
    for name, text, again in rank_pool.run(disagree, 4, (field, 1000)):
        # GroupBrokenError, with the same reason, where a rank's own part had been done before.
        assert name == "MismatchError" or name == "GroupBrokenError" and "(mismatch)" in text, text
        assert "rank 1" in text and f"differ in {field}" in text
        assert again == "GroupBrokenError"


def read_only(count: int) -> np.ndarray:
    values = np.ones(count, f32)
    values.flags.writeable = False
    return values


# Arguments that are refused before the core sees the call, on the odd rank; a good call on the others.
REFUSALS = {
    "op": lambda odd: collective_ops.allreduce(np.ones(10, f32), "summ" if odd else "sum"),
    "none": lambda odd: collective_ops.allreduce(None if odd else np.ones(10, f32)),
    "read-only": lambda odd: collective_ops.allreduce(read_only(10) if odd else np.ones(10, f32)),
    "timeout": lambda odd: collective_ops.barrier(timeout="soon" if odd else 60),
    "root": lambda odd: collective_ops.broadcast(np.ones(10, f32), "first" if odd else 0),
    "two roots": lambda odd: collective_ops.broadcast(np.ones(10, f32), 0, src=1 if odd else 0),
    "shape": lambda odd: collective_ops.reducescatter(np.ones(10 if odd else 9, f32)),
    "list": lambda odd: collective_ops.allgather(np.ones(2, f32), [np.ones(2, f32)] * (2 if odd else 3)),
    "splits": lambda odd: collective_ops.alltoall(None, np.ones(3, f32), None, [1] * (2 if odd else 3)),
}


def refused_on_one_rank(how: str, all_alike: bool) -> tuple[tuple[str, str], tuple[str, str]]:
    """The failures of the call, and of the one after it, in which all ranks agree."""
    collective_ops.init_hccl()
    collective_ops.barrier()
    first = failure_of(REFUSALS[how], all_alike or collective_ops.rank() == 1)
    values = np.full(10, collective_ops.rank(), f32)
    second = failure_of(collective_ops.allreduce, values)
    if second[0] == "none":
        assert (values == sum(range(collective_ops.world_size()))).all(), values
    return first, second


@pytest.mark.parametrize("how", REFUSALS)
def test_a_refused_call_is_told_to_the_others(rank_pool: RankPool, how: str) -> None:
    """Else the next call of the rank that was refused would be taken for the one that the others made."""
    for rank, (first, second) in enumerate(rank_pool.run(refused_on_one_rank, 3, (how, False))):
        if rank == 1:
            assert first[0] == "InvalidArgumentError", first
        elif first[0] != "none":  # a rank's own part may have been done before
            assert "rank 1: a call that was refused" in first[1], first
            assert first[0] == "MismatchError" or first[0] == "GroupBrokenError" and "(mismatch)" in first[1]
        assert second[0] in ("MismatchError", "GroupBrokenError"), second


@pytest.mark.parametrize("how", REFUSALS)
def test_ranks_that_are_refused_alike_stay_in_step(rank_pool: RankPool, how: str) -> None:
    for first, second in rank_pool.run(refused_on_one_rank, 3, (how, True)):
        assert first[0] == "InvalidArgumentError", first
        assert second == ("none", "")


def add_other_gradients(how: str) -> tuple[str, str]:
    collective_ops.init_hccl()
    bucket = collective_ops.GradientBucket()
    gradients = [np.zeros(10, f32), np.zeros(20, f32), np.zeros(30, f32)]
    for gradient in gradients:
        bucket.add(gradient)
    bucket.allreduce()
    if collective_ops.rank() == 2:
        gradients = gradients[:2] if how == "fewer" else gradients[::-1]
    for gradient in gradients:
        bucket.add(gradient)
    return failure_of(bucket.allreduce)


@pytest.mark.parametrize("how", ["fewer", "in another order"])
def test_other_gradients_in_a_bucket(rank_pool: RankPool, how: str) -> None:
    """Also where the sizes of buckets agree: the sums would be of different parameters."""
    for name, text in rank_pool.run(add_other_gradients, 3, (how,)):
        assert name == "MismatchError" and "rank" in text, text


# --- Nobody comes ----------------------------------------------------------------------------------


def wait_in_vain() -> tuple[str, str, str]:
    collective_ops.init_hccl(timeout=300)
    if collective_ops.rank() == 1:
        report("here")
        signal.pause()
    first = failure_of(collective_ops.allreduce, np.ones(3), timeout=0.3)
    return *first, failure_of(collective_ops.barrier)[0]


def test_a_deadline_names_who_is_missing(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(wait_in_vain, 3)
    ranks.receive(1)
    outcomes = None
    deadline = time.monotonic() + 60
    while any(ranks._outcomes[rank].value is None for rank in (0, 2)) and time.monotonic() < deadline:
        ranks._pool._poll(deadline)
    os.kill(ranks.pids[1], signal.SIGKILL)
    outcomes = ranks.wait()
    for rank in (0, 2):
        name, text, again = outcomes[rank].value
        assert name == "CollectiveTimeoutError" and "rank 1" in text, outcomes[rank].value
        assert again == "GroupBrokenError"
    assert issubclass(CollectiveTimeoutError, TimeoutError)


def wait_for_work_in_vain() -> None:
    collective_ops.init_hccl()
    values = np.full(3, 1.0)
    if collective_ops.rank() == 0:
        work = collective_ops.allreduce(values, async_op=True)
        with pytest.raises(CollectiveTimeoutError, match="the call goes on"):
            work.wait(timeout=0.05)
        report("waited")
        assert work.wait() is values
    else:
        report("here")
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
        collective_ops.allreduce(values)
    assert values.tolist() == [2, 2, 2]


def block_usr1_then(function: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    globals()[function]()


def test_a_wait_that_ends_early_does_not_end_the_call(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(block_usr1_then, 2, ("wait_for_work_in_vain",))
    ranks.receive(0)
    ranks.receive(1)
    os.kill(ranks.pids[1], signal.SIGUSR1)
    ranks.results()


def missing_rank() -> tuple[str, str]:
    if os.environ["RANK"] == "1":
        return "none", ""
    return failure_of(collective_ops.init_hccl, connect_timeout=0.5)


def test_a_rank_that_does_not_come_is_named(rank_pool: RankPool) -> None:
    outcomes = rank_pool.run(missing_rank, 3)
    for rank in (0, 2):
        name, text = outcomes[rank]
        assert name == "RendezvousError" and "rank 1" in text or "ranks 1" in text, text


def another_world_size() -> tuple[str, str]:
    size = 4 if os.environ["RANK"] == "1" else 3
    return failure_of(collective_ops.init_hccl, world_size=size, connect_timeout=20)


def test_another_world_size_is_named(rank_pool: RankPool) -> None:
    for name, text in rank_pool.run(another_world_size, 3):
        assert issubclass(getattr(collective_ops, name), RendezvousError), text
        assert "4" in text and "3" in text


# --- Signals ---------------------------------------------------------------------------------------


def wait_until_interrupted(how: str) -> float:
    if how == "connecting":
        if os.environ["RANK"] == "1":
            return 0.0
        report("waiting")
        with pytest.raises(KeyboardInterrupt):
            collective_ops.init_hccl()
        return time.monotonic()
    collective_ops.init_hccl()
    if collective_ops.rank() == 1:
        report("here")
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
        name, text = failure_of(collective_ops.barrier)
        assert name != "none", "the group is broken for all"
        return 0.0
    values = np.ones(3)
    report("waiting")
    with pytest.raises(KeyboardInterrupt):
        if how == "blocking":
            collective_ops.allreduce(values)
        elif how == "behind other work":
            collective_ops.allreduce(values.copy(), async_op=True)
            collective_ops.allreduce(values)
        else:
            collective_ops.allreduce(values, async_op=True).wait()
    return time.monotonic()


@pytest.mark.parametrize("how", ["blocking", "asynchronous", "connecting"])
def test_ctrl_c_ends_a_wait(rank_pool: RankPool, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = rank_pool.start(block_and_wait_until_interrupted, 2, (how,))
    ranks.receive(0)
    if how != "connecting":
        ranks.receive(1)
    time.sleep(0.1)  # likely inside by now; before it, the test would hold as well
    sent = time.monotonic()
    os.kill(ranks.pids[0], signal.SIGINT)
    while ranks._outcomes[0].value is None and ranks._outcomes[0].error is None:
        assert ranks._pool._poll(sent + 60), "rank 0 was not interrupted"
    if how != "connecting":
        os.kill(ranks.pids[1], signal.SIGUSR1)
    outcomes = ranks.wait()
    assert outcomes[0].ok, outcomes[0]
    assert outcomes[1].ok, outcomes[1]
    delay = outcomes[0].value - sent
    with capsys.disabled():
        print(f" [Ctrl-C, {how}: {1e3 * delay:.0f} ms]", end="")
    assert delay < PATIENCE_S


def block_and_wait_until_interrupted(how: str) -> float:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    return wait_until_interrupted(how)


def other_threads_run_during_a_wait() -> int:
    import threading

    collective_ops.init_hccl()
    if collective_ops.rank() == 1:
        report("here")
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
    else:
        counted = threading.Event()

        def count() -> None:
            report("counting")  # while the main thread waits without the interpreter's lock
            counted.set()

        threading.Timer(0.05, count).start()
    collective_ops.barrier()
    return 1


def block_and_let_threads_run() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    return other_threads_run_during_a_wait()


def test_other_threads_run_during_a_wait(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(block_and_let_threads_run, 2)
    ranks.receive(1)
    assert ranks.receive(0) == "counting"
    os.kill(ranks.pids[1], signal.SIGUSR1)
    assert ranks.results() == [1, 1]


# --- Forks -----------------------------------------------------------------------------------------


def call_in_a_child() -> list[str]:
    collective_ops.init_hccl()
    rank = collective_ops.rank()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for call in (
            lambda: collective_ops.allreduce(np.ones(3)),
            collective_ops.barrier,
            collective_ops.rank,
        ):
            try:
                call()
            except NotInitializedError as error:
                texts.append(str(error))
        collective_ops.init_hccl(0, 1, job_id=f"child of {rank}")  # a world of its own
        values = np.ones(3)
        collective_ops.allreduce(values)
        texts.append(str(values.tolist()))
        os.write(write, "\n".join(texts).encode())
        collective_ops.finalize()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        texts = pipe.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    values = np.full(3, 1)
    collective_ops.allreduce(values)  # the parent's group has not noticed
    assert values.tolist() == [collective_ops.world_size()] * 3
    return texts


def test_a_forked_child_is_told(rank_pool: RankPool) -> None:
    for texts in rank_pool.run(call_in_a_child, 2):
        assert len(texts) == 4
        assert all("a fork of a rank" in text and "spawn" in text for text in texts[:3])
        assert texts[3] == "[1.0, 1.0, 1.0]"


# --- What is left ----------------------------------------------------------------------------------


def busy(directory: str) -> None:
    os.environ["COLLECTIVE_OPS_TRACE"] = "1"
    collective_ops.init_hccl()
    bucket = collective_ops.GradientBucket()
    shared, private = collective_ops._core.SharedArray([1 << 20], "float32"), np.ones(1 << 20, f32)
    np.asarray(shared)[:] = 0
    step = 0
    while True:
        collective_ops.allreduce(shared, "max")
        collective_ops.allreduce(private, "max", async_op=True).wait()
        bucket.add(private)
        bucket.allreduce()
        bucket.clear()
        private[:] = 1
        step += 1
        if step == 3:
            report("busy")


def left_behind() -> set[str]:
    ours = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    return ours | {f"/tmp/{name}" for name in os.listdir("/tmp") if "collective" in name.lower()}


def abstract_sockets(job: str) -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if job in line]


def test_killing_all_ranks_leaves_nothing_but_the_trace(rank_pool: RankPool, tmp_path: Path) -> None:
    before = left_behind()
    ranks = rank_pool.start(busy, 8, (str(tmp_path),), cwd=tmp_path)
    for rank in range(8):
        ranks.receive(rank, timeout=120)
    sockets = {link for pid in ranks.pids for link in descriptors(pid) if link.startswith("socket:")}
    assert sockets
    for pid in ranks.pids:
        os.kill(pid, signal.SIGKILL)
    assert [outcome.exit_code for outcome in ranks.wait()] == [-signal.SIGKILL] * 8
    assert left_behind() - before == set()
    assert not [pid for pid in ranks.pids if Path(f"/proc/{pid}").exists()]
    inodes = {link[len("socket:[") : -1] for link in sockets}
    assert not [line for line in Path("/proc/net/unix").read_text().splitlines() if line.split()[6] in inodes]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 8 and all(name.endswith(".bin") for name in files), files

    merged = subprocess.run(
        [sys.executable, "-m", "collective_ops.cli", "trace", "merge", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "comm_trace.json").stat().st_size > 1000, merged.stdout + merged.stderr


def descriptors(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(folder / name) for name in os.listdir(folder)]
