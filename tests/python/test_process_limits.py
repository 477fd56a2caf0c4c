"""Calls in a process whose limits leave no room: for a thread, or for more memory."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path

import numpy as np
from collective_ops import OutOfMemoryError, allreduce, empty, init_hccl, rank, world_size
from rank_pool import RankPool


def address_space() -> int:
    """Bytes that this process has mapped."""
    return 1024 * int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def ask_for_large_stacks(size: int) -> None:
    """Of threads to come, so that none takes the stack that another one left."""
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(64)
    assert libc.pthread_attr_init(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0


def without_room_for_a_thread() -> int:
    init_hccl()
    data = np.full(5000, rank() + 1.0, np.float32)
    before = len(list(Path("/proc/self/task").iterdir()))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    ask_for_large_stacks(64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (16 << 20), hard))
    work = allreduce(data, async_op=True)
    work.wait()
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    np.testing.assert_array_equal(data, sum(range(1, world_size() + 1)))
    return len(list(Path("/proc/self/task").iterdir())) - before


def test_a_started_call_runs_where_no_thread_can_be_made(rank_pool: RankPool) -> None:
    assert rank_pool.run(without_room_for_a_thread, 2) == [0, 0]


def without_room_for_memory() -> float:
    init_hccl()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (8 << 20), hard))
    try:
        empty(64 << 20)
    except OutOfMemoryError as error:
        assert "RLIMIT_AS" in str(error) or "memory" in str(error)
    else:
        raise AssertionError("256 MiB within 8 MiB")
    data = np.ones(1000, np.float32)
    allreduce(data)
    return float(data[0])


def test_memory_that_a_limit_forbids_is_an_error_and_the_group_goes_on(rank_pool: RankPool) -> None:
    assert rank_pool.run(without_room_for_memory, 2) == [2.0, 2.0]
