"""Programs that do unusual things around a group: they end, with the right numbers or the right error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid

import pytest

pytest.importorskip("numpy")

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import collective_ops as ops
rank = int(os.environ["RANK"])
"""


def run_ranks(body: str, world_size: int = 2, timeout: float = 60) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each rank of a small program."""
    env = {**os.environ, "WORLD_SIZE": str(world_size), "COLLECTIVE_OPS_JOB_ID": str(uuid.uuid4())}
    program = PROLOGUE + textwrap.dedent(body)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        ended = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, ended, strict=True)]


def test_main_thread_may_end_while_a_daemon_thread_waits() -> None:
    ended = run_ranks(
        """
        ops.init_hccl()
        if rank == 0:
            entered = threading.Event()
            def call():
                entered.set()
                ops.allreduce(np.ones(10))
            threading.Thread(target=call, daemon=True).start()
            entered.wait()
        """
    )
    assert [status for status, _, _ in ended] == [0, 0], ended


def test_forked_child_ends_after_an_asynchronous_call() -> None:
    ended = run_ranks(
        """
        ops.init_hccl()
        work = ops.allreduce(np.ones(10), async_op=True)
        work.wait()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        print(os.waitpid(child, 0)[1])
        ops.barrier()
        """
    )
    assert [(status, out.strip()) for status, out, _ in ended] == [(0, "0"), (0, "0")], ended


def test_call_from_a_signal_handler_within_a_call_is_refused() -> None:
    ended = run_ranks(
        """
        ops.init_hccl(timeout=30)
        def handler(*_):
            try:
                ops.barrier()
            except ops.InvalidArgumentError as error:
                print("refused:", error)
        signal.signal(signal.SIGUSR1, handler)
        pids = ops.allgather(np.array([os.getpid()]))
        value = np.ones(3)
        if rank == 1:
            from collective_ops import jobs, status
            other = int(pids[0][0])
            stop = time.monotonic() + 20
            while time.monotonic() < stop:
                found = status.select(jobs.find_groups(), str(other))
                if found and found[0].ranks[0].activity == "waiting":
                    break
            os.kill(other, signal.SIGUSR1)
            time.sleep(0.1)  # a handler that did call would do so in this time
        ops.allreduce(value)
        print(value[0])
        """
    )
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert ended[1][1].split() == ["2.0"]


def test_result_of_a_dropped_call_reaches_a_strided_array() -> None:
    ended = run_ranks(
        """
        ops.init_hccl()
        value = np.ones(20)
        ops.allreduce(value[::2], async_op=True)
        ops.barrier()
        print(value[:4].tolist())
        other = np.ones(20)
        ops.allreduce(other[::2], async_op=True)
        ops.finalize()
        print(other[:4].tolist())
        """
    )
    assert all(out.split("\n")[:2] == ["[2.0, 1.0, 2.0, 1.0]"] * 2 for _, out, _ in ended), ended


def test_overlapping_buffers_are_refused_and_own_parts_are_in_place() -> None:
    ended = run_ranks(
        """
        ops.init_hccl()
        n = 300000
        whole = np.empty(2 * n, "f4")
        try:
            ops.allgather(whole[n // 2 : n // 2 + n], whole)
        except ops.InvalidArgumentError as error:
            print("overlap" in str(error))
        own = whole[rank * n : (rank + 1) * n]
        own[:] = rank + 1
        ops.allgather(own, whole)
        print(whole[0], whole[-1])
        """
    )
    assert all(out.split() == ["True", "1.0", "2.0"] for _, out, _ in ended), ended


@pytest.mark.parametrize("variable", ["COLLECTIVE_OPS_PATH=staged", "COLLECTIVE_OPS_ALGORITHM=ring"])
def test_paths_forced_on_one_rank_alone_are_noticed(variable: str) -> None:
    name, value = variable.split("=")
    ended = run_ranks(
        f"""
        if rank == 0:
            os.environ["{name}"] = "{value}"
        ops.init_hccl(timeout=30)
        try:
            ops.allreduce(np.ones(1 << 12))
        except ops.MismatchError as error:
            print("COLLECTIVE_OPS_PATH" in str(error))
        """
    )
    assert [out.strip() for _, out, _ in ended] == ["True", "True"], ended


def test_roots_that_never_waited_are_compared_when_they_leave() -> None:
    ended = run_ranks(
        """
        ops.init_hccl()
        ops.broadcast(np.full(4, rank), rank)
        """
    )
    said = "".join(err for _, _, err in ended)
    assert "They differ in root" in said and "as call #1" in said, ended


def test_ctrl_c_ends_finalize_that_waits_for_a_peer() -> None:
    ended = run_ranks(
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what `nohup ... &` has started
        ops.init_hccl(timeout=30)
        work = ops.allreduce(np.ones(4), async_op=True) if rank == 0 else None
        if rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                ops.finalize()
            except KeyboardInterrupt:
                print("interrupted")
        else:
            time.sleep(2)  # is there, and makes no call
        """
    )
    assert ended[0][1].strip() == "interrupted", ended


def test_too_few_descriptors_is_said() -> None:
    ended = run_ranks(
        """
        import resource
        ops.init_hccl(timeout=30)
        value = ops.empty((1 << 20,), "float32")
        held = [os.open("/dev/null", os.O_RDONLY)]
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 2, held[0] + 2))
            held.append(os.open("/dev/null", os.O_RDONLY))
        try:
            ops.allreduce(value)
            print("ok")
        except ops.CollectiveError as error:
            print("ulimit -n" in str(error))
        """
    )
    assert {out.strip() for _, out, _ in ended} <= {"True", "ok"}, ended
