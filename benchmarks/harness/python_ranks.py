"""A rank in Python: ours through its Python functions, and PyTorch's Gloo, both under the same orders.

    python -m harness.python_ranks SOCKET RANK RANKS STORE

Orders as in peers/rank_channel.h; the memory is `shared` or `private` for ours, `gloo` for Gloo.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

# As kChannelLimitSeconds of peers/rank_channel.h.
LIMIT_SECONDS = 300
PR_SET_PDEATHSIG = 1


def serve(path: str, rank: int, obey: Callable[[list[str]], float]) -> None:
    """Says hello, then answers each order with the number that `obey` returns, until the parent closes.

    Ends with the parent, also where that is killed while a call waits.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        channel.sendall(f"hello {rank} {os.getpid()}\n".encode())
        for line in channel.makefile():
            signal.alarm(LIMIT_SECONDS)
            try:
                answer = f"ok {obey(line.split()):.9f}"
            except Exception as error:
                answer = f"error {type(error).__name__}: {error}".replace("\n", " ")[:400]
            channel.sendall(answer.encode() + b"\n")
            signal.alarm(0)


class Case:
    """Buffers and the call of one case on this rank; in place wherever that is possible, root 0."""

    def __init__(self, collective: str, dtype: str, memory: str, size: int, rank: int, ranks: int) -> None:
        import torch

        kind = getattr(torch, dtype)
        self.collective, self.rank, self.ranks = collective, rank, ranks
        self.total = size // kind.itemsize
        self.part = self.total // ranks
        self.whole = rank == 0 or collective not in ("gather", "scatter")
        self.data = _make(memory, self.total if self.whole else self.part, dtype)
        self.other = _make(memory, self.total, dtype) if collective == "all_to_all" else None
        self.call = (self._gloo if memory == "gloo" else self._ours)()

    def _parts(self) -> list[Any]:
        return list(self.data.view(self.ranks, self.part)) if self.whole and self.part else []

    def _own(self) -> Any:
        return self.data[self.rank * self.part : (self.rank + 1) * self.part] if self.whole else self.data

    def _ours(self) -> Callable[[], Any]:
        import collective_ops as ops

        data, other, own, root = self.data, self.other, self._own(), self.rank == 0
        return {
            "all_reduce": lambda: ops.allreduce(data),
            "all_gather": lambda: ops.allgather(own, data),
            "reduce_scatter": lambda: ops.reducescatter(data, out=own),
            "broadcast": lambda: ops.broadcast(data, 0),
            "reduce": lambda: ops.reduce(data, 0),
            "gather": lambda: ops.gather(own, data if root else None),
            "scatter": lambda: ops.scatter(own, data if root else None),
            "all_to_all": lambda: ops.alltoall(other, data),
            "barrier": ops.barrier,
        }[self.collective]

    def _gloo(self) -> Callable[[], Any]:
        import torch.distributed as dist

        data, other, own, parts = self.data, self.other, self._own(), self._parts()
        lists = parts if self.rank == 0 else None
        return {
            "all_reduce": lambda: dist.all_reduce(data),
            "all_gather": lambda: dist.all_gather_into_tensor(data, own),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, data),
            "broadcast": lambda: dist.broadcast(data, 0),
            "reduce": lambda: dist.reduce(data, 0),
            "gather": lambda: dist.gather(own, lists),
            "scatter": lambda: dist.scatter(own, lists),
            "all_to_all": lambda: dist.all_to_all_single(other, data),
            "barrier": dist.barrier,
        }[self.collective]

    def _value(self, rank: int, first: int, count: int) -> Any:
        """Elements `first` and on of what rank `rank` has before the check, as mpi_collectives.c has them."""
        import torch

        cycle = torch.arange(7, dtype=torch.int32).roll(-(first % 7)) + rank + 1
        return cycle.to(self.data.dtype).repeat(count // 7 + 1)[:count]

    def _sum(self, first: int, count: int) -> Any:
        # Of the values of all ranks: one rank's, times the ranks, and what their numbers add.
        return self._value(0, first, count) * self.ranks + self.ranks * (self.ranks - 1) // 2

    def fill(self) -> None:
        rank, part, total = self.rank, self.part, self.total
        self.data.zero_()
        if self.collective in ("all_gather", "gather"):
            self._own().copy_(self._value(rank, 0, part))
        elif self.collective == "scatter":
            for owner, piece in enumerate(self._parts() if rank == 0 else []):
                piece.copy_(self._value(owner, 0, part))
        elif self.collective != "broadcast" or rank == 0:
            self.data.copy_(self._value(rank, 0, total))

    def wrong(self) -> int:
        import torch

        rank, ranks, part, total = self.rank, self.ranks, self.part, self.total
        first = rank * part
        if self.collective == "barrier" or (rank != 0 and self.collective in ("reduce", "gather")):
            return 0
        result, expected = {
            "all_reduce": lambda: (self.data, self._sum(0, total)),
            "reduce": lambda: (self.data, self._sum(0, total)),
            "reduce_scatter": lambda: (self._own(), self._sum(first, part)),
            "broadcast": lambda: (self.data, self._value(0, 0, total)),
            "scatter": lambda: (self._own(), self._value(rank, 0, part)),
            "all_to_all": lambda: (
                self.other,
                torch.cat([self._value(peer, first, part) for peer in range(ranks)]),
            ),
        }.get(
            self.collective,
            lambda: (self.data, torch.cat([self._value(peer, 0, part) for peer in range(ranks)])),
        )()
        return int((result != expected).sum())


def _make(memory: str, count: int, dtype: str) -> Any:
    import collective_ops as ops
    import torch

    if memory != "shared":
        return torch.zeros(count, dtype=getattr(torch, dtype))
    data = ops.empty((count,), dtype)
    data.zero_()
    return data


def main() -> None:
    path, rank, ranks, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import collective_ops as ops
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    ops.init_hccl(rank=rank, world_size=ranks, device_id=rank)
    cases: dict[str, Any] = {}

    def obey(words: list[str]) -> float:
        order, rest = words[0], words[1:]
        if order == "case" and rest[0] == "resnet50":
            from .gradients import GradientCase

            cases[rest[2]] = GradientCase(rest[2])
        elif order == "case":
            cases.pop(rest[2], None)
            cases[rest[2]] = Case(rest[0], rest[1], rest[2], int(rest[3]), rank, ranks)
        elif order == "drop":
            cases.pop(rest[0], None)
        elif order == "check":
            case = cases[rest[0]]
            case.fill()
            case.call()
            wrong = case.wrong()
            case.data.zero_()
            if wrong:
                raise ValueError(f"{wrong} wrong elements")
        else:
            return run(cases[rest[0]].call, int(rest[1]))
        return 0.0

    def run(call: Callable[[], Any], calls: int) -> float:
        ops.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin

    serve(path, rank, obey)
    # The parent has closed. Peers may be gone already: nothing is said to them.
    os._exit(0)


if __name__ == "__main__":
    main()
