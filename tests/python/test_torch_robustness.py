"""What programs did to other backends, and what must come of it here."""

from __future__ import annotations

import os
import pickle
import random
import resource
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import collective_ops_torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402


def halves() -> float:
    with process_group():
        mine = [0, 1] if rank() < 2 else [2, 3]
        group = dist.new_group(mine, use_local_synchronization=True)
        number = torch.tensor([float(rank())])
        dist.all_reduce(number, group=group)
        dist.all_reduce(number)
        return number.item()


def test_halves_make_their_own_groups_at_once(rank_pool: RankPool) -> None:
    assert rank_pool.run(halves, 4) == [12.0] * 4  # 2 * (0 + 1) + 2 * (2 + 3)


def sender_leaves(path: str) -> float:
    store = dist.FileStore(path, 2)
    dist.init_process_group("collective_ops", store=store, rank=rank(), world_size=2)
    if rank() == 0:
        dist.isend(torch.full((250_000,), 7.0), 1)
        return 0.0
    time.sleep(1)
    got = torch.zeros(250_000)
    dist.recv(got, 0)
    return got[-1].item()


def test_a_message_outlives_the_handle_and_the_end_of_its_program(rank_pool: RankPool, tmp_path) -> None:
    assert rank_pool.run(sender_leaves, 2, (str(tmp_path / "store"),)) == [0.0, 7.0]


def varying_sizes() -> int:
    generator = random.Random(1)
    with process_group():
        for _ in range(100):
            dist.all_reduce(torch.ones(generator.randrange(1, 200_000)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(1000):
            dist.all_reduce(torch.ones(generator.randrange(1, 200_000)))
        for _ in range(500):
            dist.all_reduce(torch.ones(generator.randrange(1, 2000)), async_op=True)
        dist.barrier()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def test_memory_stays_flat(rank_pool: RankPool) -> None:
    assert max(rank_pool.run(varying_sizes, 2)) < 20 * 1024  # KiB


def forks() -> float:
    with process_group():
        number = torch.ones(1)
        dist.all_reduce(number)
        child = os.fork()
        if child == 0:
            dist.destroy_process_group()
            os._exit(17)
        begun = time.monotonic()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 17 and time.monotonic() - begun < 10
        dist.all_reduce(number)
        return number.item()


def test_a_forked_child_lets_go_of_the_group(rank_pool: RankPool) -> None:
    assert rank_pool.run(forks, 2) == [4.0, 4.0]


def endless_timeouts() -> None:
    with process_group(seconds=8_640_000_000):
        dist.all_reduce(torch.ones(100_000), async_op=True).wait()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(0)
        dist.group.WORLD.allreduce([torch.ones(100_000)], options).wait()


def test_timeouts_without_end(rank_pool: RankPool) -> None:
    rank_pool.run(endless_timeouts, 2)


def a_new_group_after_an_abort() -> float:
    with process_group():
        group = dist.new_group([0, 1])
        dist.barrier(group)
        if rank() == 0:
            group.abort()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1), group=group)
            dist.all_reduce(torch.ones(1), group=group)
        again = dist.new_group([0, 1])
        number = torch.ones(1)
        dist.all_reduce(number, group=again)
        return number.item()


def test_a_new_group_after_an_abort(rank_pool: RankPool) -> None:
    assert rank_pool.run(a_new_group_after_an_abort, 2) == [2.0, 2.0]


def one_rank_is_late() -> float:
    """Seconds of processor time that waiting costs."""
    with process_group():
        dist.barrier()
        begun = time.process_time()
        if rank() == 0:
            time.sleep(3)
        dist.all_reduce(torch.ones(1000))
        return time.process_time() - begun


def test_waiting_burns_no_core(rank_pool: RankPool) -> None:
    assert max(rank_pool.run(one_rank_is_late, 4)) < 0.5


def debug_mode() -> str:
    with process_group():
        number = torch.ones(3)
        dist.all_reduce(number)
        assert number[0] == world_size()
        return dist.get_backend()


def test_debug_mode_of_pytorch(rank_pool: RankPool) -> None:
    names = rank_pool.run(debug_mode, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert names == ["collective_ops"] * 2


def on_two_hosts(path: str) -> tuple[str, float]:
    import ctypes

    if rank() == 1 and ctypes.CDLL(None).unshare(0x40000000) != 0:  # a network namespace of its own
        return "not allowed", 0.0
    begun = time.monotonic()
    store = dist.FileStore(path, 2)
    try:
        dist.init_process_group("collective_ops", store=store, rank=rank(), world_size=2)
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - begun
    return "", 0.0


def test_ranks_of_two_hosts_are_told_at_once(rank_pool: RankPool, tmp_path) -> None:
    results = rank_pool.run(on_two_hosts, 2, (str(tmp_path / "store"),), timeout=100)
    if results[1][0] == "not allowed":
        pytest.skip("no right to make a network namespace")
    for text, seconds in results:
        assert "rank 1 is on another host than rank 0" in text and "COLLECTIVE_OPS_SECRET" in text
        assert seconds < 20


def missing_rank(path: str) -> str:
    if rank() == 2:
        return ""
    store = dist.FileStore(path, 3)
    try:
        dist.init_process_group(
            "collective_ops", store=store, rank=rank(), world_size=3, timeout=timedelta(seconds=1)
        )
    except dist.DistBackendError as error:
        return str(error)
    return "joined"


def test_a_missing_rank_is_named(rank_pool: RankPool, tmp_path) -> None:
    for text in rank_pool.run(missing_rank, 3, (str(tmp_path / "store"),))[:2]:
        assert "rank 2 did not come in 1000 ms" in text


def groups_in_a_dump(path: str) -> int:
    """Many groups come and go; the world's calls fill the recorder again at the end."""
    with process_group(seconds=60):
        for _ in range(100):
            group = dist.new_group([0, 1])
            dist.barrier(group)
            dist.destroy_process_group(group)
        for _ in range(8):
            dist.barrier()
        group = dist.new_group([0, 1])
        dist.barrier(group)
        collective_ops_torch.dump_flight_recorder(f"{path}{rank()}")
        with open(f"{path}{rank()}", "rb") as file:
            dump = pickle.load(file)
        named = {entry["process_group"][0] for entry in dump["entries"]}
        assert len(dump["entries"]) == 8 and named <= set(dump["pg_config"])
        assert group.group_name in dump["pg_config"]
        return len(dump["pg_config"])


def test_the_flight_recorder_forgets_old_groups(rank_pool: RankPool, tmp_path) -> None:
    counts = rank_pool.run(
        groups_in_a_dump, 2, (str(tmp_path / "dump"),), env={"TORCH_FR_BUFFER_SIZE": "8"}, timeout=60
    )
    assert max(counts) <= 2 * 9 + 64
