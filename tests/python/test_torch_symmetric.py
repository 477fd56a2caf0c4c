"""torch.distributed._symmetric_memory on CPUs: buffers of all ranks, barriers, signals, missing ranks."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
from example_ranks import run_example  # noqa: E402
from rank_pool import RankPool, report  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402

COUNT = 1000


def every_rank_reads_every_buffer() -> dict[str, int]:
    with process_group():
        tensor = symm_mem.empty((10, COUNT // 10), dtype=torch.bfloat16, device="cpu")
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        assert symm_mem.is_symm_mem_tensor(tensor) and symm_mem.get_backend("cpu") == "collective_ops"
        assert (handle.rank, handle.world_size) == (rank(), world_size())
        assert handle.buffer_size == 2 * COUNT and handle.buffer_ptrs[rank()] == tensor.data_ptr()
        assert symm_mem.rendezvous(tensor, dist.group.WORLD).buffer_ptrs == handle.buffer_ptrs
        for step in range(20):
            tensor.fill_(rank() + step)
            handle.barrier(channel=step % 3)
            for peer in range(world_size()):
                assert (handle.get_buffer(peer, (COUNT,), torch.bfloat16) == peer + step).all()
                tail = handle.get_buffer(peer, (8,), torch.bfloat16, storage_offset=COUNT - 8)
                assert (tail == peer + step).all()
            handle.barrier(channel=step % 3)
        tensor.fill_(1)
        dist.all_reduce(tensor)
        assert (tensor == world_size()).all()
        with pytest.raises(RuntimeError, match="exceeds the allocated size"):
            handle.get_buffer(0, (COUNT + 1,), torch.bfloat16)
        return dist.group.WORLD._get_backend(torch.device("cpu")).counters()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_reads_every_buffer(rank_pool: RankPool, ranks: int) -> None:
    rank_pool.run(every_rank_reads_every_buffer, ranks)


def ring() -> int:
    """Each rank puts into its right neighbour's buffer and signals it."""
    with process_group():
        tensor = symm_mem.empty(COUNT, dtype=torch.int64, device="cpu")
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        right, left = (rank() + 1) % world_size(), (rank() - 1) % world_size()
        tensor.fill_(0)
        handle.barrier()
        for step in range(100):
            if rank() == 0:
                handle.get_buffer(right, (COUNT,), torch.int64).copy_(tensor + 1)
                handle.put_signal(right, channel=1)
                handle.wait_signal(left, channel=1)
            else:
                handle.wait_signal(left, channel=1)
                handle.get_buffer(right, (COUNT,), torch.int64).copy_(tensor + 1)
                handle.put_signal(right, channel=1)
            assert (tensor == tensor[0]).all(), step
        signals = handle.get_signal_pad(rank(), (2, world_size()), torch.int32)
        assert (signals[1] == 0).all()  # of channel 1: all taken
        handle.barrier()
        return int(tensor[0])


def test_signals_order_what_ranks_put(rank_pool: RankPool) -> None:
    assert rank_pool.run(ring, 3) == [300, 298, 299]


def groups_of_two() -> None:
    with process_group():
        mine = [0, 1] if rank() < 2 else [3, 2]
        group = dist.new_group(mine, use_local_synchronization=True, sort_ranks=False)
        tensor = symm_mem.empty(4, dtype=torch.float32, device="cpu")
        tensor.fill_(rank())
        handle = symm_mem.rendezvous(tensor, group)
        world = symm_mem.rendezvous(tensor, dist.group.WORLD)
        handle.barrier()
        assert handle.rank == mine.index(rank())
        for place, member in enumerate(mine):
            assert (handle.get_buffer(place, (4,), torch.float32) == member).all()
        world.barrier()
        for peer in range(world_size()):
            assert (world.get_buffer(peer, (4,), torch.float32) == peer).all()
        world.barrier()


def test_one_tensor_in_several_groups(rank_pool: RankPool) -> None:
    rank_pool.run(groups_of_two, 4)


def outlives() -> float:
    with process_group():
        tensor = symm_mem.empty(COUNT, device="cpu")
        tensor.fill_(rank())
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
        handle.barrier()
        del tensor
        for _ in range(50):  # what was freed is not handed out again while somebody looks at it
            symm_mem.empty(COUNT, device="cpu").fill_(-1)
        dist.barrier()
    return handle.get_buffer(1 - rank(), (COUNT,), torch.float32).mean().item()


def test_a_handle_outlives_tensor_and_group(rank_pool: RankPool) -> None:
    assert rank_pool.run(outlives, 2) == [1.0, 0.0]


def shared_kib() -> int:
    """Memory of this process that is mapped from memfd: pages it has touched."""
    total, ours = 0, False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            if "-" in line.split(" ", 1)[0]:
                ours = "memfd:collective-ops " in line
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total


def comes_and_goes() -> tuple[int, int, int]:
    with process_group():
        sizes, files = [], []
        for step in range(60):
            tensor = symm_mem.empty(1 << 20, dtype=torch.uint8, device="cpu")
            handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
            handle.get_buffer(1 - rank(), (1 << 20,), torch.uint8).fill_(1)
            handle.barrier()
            if step >= 10:
                sizes.append(shared_kib())
                files.append(len(os.listdir("/proc/self/fd")))
        return sizes[0], max(sizes), max(files) - min(files)


def test_memory_comes_back(rank_pool: RankPool) -> None:
    for first, largest, files in rank_pool.run(comes_and_goes, 2):
        assert largest < first + 8 * 1024 and files < 8


def refusals() -> list[str]:
    texts = []

    def refused(kind: type[Exception], call) -> None:  # noqa: ANN001
        with pytest.raises(kind) as caught:
            call()
        texts.append(str(caught.value))

    with process_group():
        gloo = dist.new_group(backend="gloo")
        tensor = symm_mem.empty(COUNT + rank(), device="cpu")
        refused(ValueError, lambda: symm_mem.rendezvous(tensor, dist.group.WORLD))
        refused(ValueError, lambda: symm_mem.rendezvous(torch.ones(3), dist.group.WORLD))
        refused(ValueError, lambda: symm_mem.rendezvous(tensor, gloo))
        handle = symm_mem.rendezvous(symm_mem.empty(4, device="cpu"), dist.group.WORLD)
        refused(ValueError, lambda: handle.put_signal(7))
        refused(ValueError, lambda: handle.wait_signal(1 - rank(), channel=1_000_000))
        begun = time.monotonic()
        refused(dist.DistBackendError, lambda: handle.wait_signal(1 - rank(), channel=1, timeout_ms=50))
        assert time.monotonic() - begun < 20
        handle.barrier()  # nothing is broken
        dist.barrier()
    return texts


def test_what_is_refused_says_why(rank_pool: RankPool) -> None:
    for number, texts in enumerate(rank_pool.run(refusals, 2)):
        other = 1 - number
        assert f"the tensor of rank {other} of the group has another size" in texts[0]
        assert "no symmetric memory of the CPU" in texts[1]
        assert "gloo" in texts[2]
        assert "rank 7" in texts[3] and "channel 1000000" in texts[4]
        assert f"rank {number} waits for rank {other}" in texts[5] and "to signal" in texts[5]


def victim() -> str:
    dist.init_process_group("collective_ops")
    handle = symm_mem.rendezvous(symm_mem.empty(4, device="cpu"), dist.group.WORLD)
    handle.barrier()
    report(True)
    if rank() == 2:
        signal.pause()
    try:
        handle.barrier() if rank() == 0 else handle.wait_signal(2)
    except dist.DistBackendError as error:
        return str(error)
    return "nothing noticed"


def test_a_dead_rank_is_named(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(victim, 3)
    for number in range(3):
        ranks.receive(rank=number, timeout=60)
    os.kill(ranks.pids[2], signal.SIGKILL)
    outcomes = ranks.wait(timeout=60)
    for outcome in outcomes[:2]:
        assert "rank 2 (pid" in outcome.value and "was lost: killed by signal 9" in outcome.value, outcome


def test_the_example_runs() -> None:
    for ranks in (1, 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        outputs = run_example(
            "heat_halo.py", ranks, timeout=120, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        assert "equal to one process's" in outputs[0]
