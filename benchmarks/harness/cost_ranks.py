"""A rank for costs_benchmark.py: connects and waits on orders, after PyTorch was imported.

    python -m harness.cost_ranks SOCKET RANK RANKS STORE

Orders, WHO being `ours`, `gloo` (ranks find each other by a file) or `gloo-tcp` (by a TCP store):
    connect WHO NUMBER    a group of its own per number, of gloo-tcp a free port; answer: seconds
    join WHO NUMBER       the same, and a barrier
    barrier WHO           answer: seconds
    wait WHO SECONDS      rank 0 comes to a barrier that much later; answer: processor time of the wait but
                          for its first millisecond, over its length
    idle SECONDS          between calls; answer: processor time over its length
    close WHO
    at SECONDS ORDER      of connect and join: once the monotonic clock shows that, by which all ranks are
                          awake and have read the order; answer: the time since then
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

FIRST = 0.001


def timed(call: Callable[[], object], begin: float | None = None) -> float:
    if begin is None:
        begin = time.monotonic()
    elif (left := begin - time.monotonic()) > 0:
        time.sleep(left)
    call()
    return time.monotonic() - begin


def busy_share(call: Callable[[], object], free: float) -> float:
    """Processor time of all threads beyond `free` seconds, over the time that `call` takes."""
    cpu, begin = time.process_time(), time.perf_counter()
    call()
    wall = time.perf_counter() - begin - free
    return max(0.0, time.process_time() - cpu - free) / max(wall, 1e-9)


def main() -> None:
    path, rank, ranks, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import collective_ops as ops
    import torch
    import torch.distributed as dist

    from .python_ranks import serve

    torch.set_num_threads(1)

    def connect(who: str, number: str) -> None:
        if who == "ours":
            ops.init_hccl(
                rank=rank,
                world_size=ranks,
                device_id=rank,
                job_id=f"costs.{os.path.dirname(store)[-8:]}.{number}",
            )
        else:
            method = f"tcp://127.0.0.1:{number}" if who == "gloo-tcp" else f"file://{store}.{number}"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks)

    def late_barrier(who: str, seconds: float) -> None:
        if rank == 0:
            time.sleep(seconds)
        (ops.barrier if who == "ours" else dist.barrier)()

    def obey(words: list[str]) -> float:
        begin = None
        if words[0] == "at":
            begin, words = float(words[1]), words[2:]
        order, rest = words[0], words[1:]
        if order == "connect":
            return timed(lambda: connect(*rest), begin)
        if order == "join":
            return timed(lambda: (connect(*rest), late_barrier(rest[0], 0)), begin)
        if order == "barrier":
            return timed(lambda: late_barrier(rest[0], 0))
        if order == "wait":
            share = busy_share(lambda: late_barrier(rest[0], float(rest[1])), FIRST)
            return share if rank != 0 else 0.0
        if order == "idle":
            return busy_share(lambda: time.sleep(float(rest[0])), 0.0)
        if order == "close":
            (ops.finalize if rest[0] == "ours" else dist.destroy_process_group)()
            return 0.0
        raise ValueError(f"not understood: {order}")

    serve(path, rank, obey)
    os._exit(0)


if __name__ == "__main__":
    main()
