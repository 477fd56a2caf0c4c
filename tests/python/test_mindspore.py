"""MindSpore's tensors, in place. `make test-mindspore` runs this."""

from __future__ import annotations

import numpy as np
import pytest
from collective_ops import (
    InvalidArgumentError,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    gather,
    init_hccl,
    premul_sum,
    rank,
    reduce,
    reducescatter,
    scatter,
    world_size,
)
from example_ranks import run_example
from rank_pool import RankPool

ms = pytest.importorskip("mindspore")


def filled(count: int, value: float, dtype: str = "float32") -> ms.Tensor:
    return ms.Tensor(np.full(count, value), getattr(ms, dtype))


def values(tensor: ms.Tensor) -> list:
    assert isinstance(tensor, ms.Tensor)
    return tensor.astype(ms.float32).asnumpy().tolist()


def every_call() -> None:
    init_hccl(timeout=60)
    me, n = rank(), world_size()
    total = n * (n + 1) / 2

    tensor = filled(3, me + 1)
    assert allreduce(tensor) is tensor and values(tensor) == [total] * 3
    assert values(tensor + 1) == [total + 1] * 3  # MindSpore sees it too
    tensor = filled(3, me + 1)
    work = allreduce(tensor, "avg", async_op=True)
    assert work.wait() is tensor and values(tensor) == [total / n] * 3
    assert values(allreduce(filled(2, 1), premul_sum(me + 1))) == [total, total]
    for dtype in ("float16", "bfloat16", "int8", "uint16", "int64"):
        tensor = filled(5, me, dtype)
        assert allreduce(tensor) is tensor and values(tensor) == [n * (n - 1) / 2] * 5
    assert allreduce(ms.Tensor([me == 1, False])).asnumpy().tolist() == [True, False]
    parameter = ms.Parameter(filled(2, me), name="w")
    assert broadcast(parameter, 1) is parameter and values(parameter) == [1, 1]

    assert values(allgather(filled(2, me))) == [[r, r] for r in range(n)]
    assert values(allgather(filled(2, me, "bfloat16"))) == [[r, r] for r in range(n)]
    parts = [filled(1, -1) for _ in range(n)]
    assert allgather(parts, filled(1, me)) is parts and [values(p) for p in parts] == [[r] for r in range(n)]
    assert values(reducescatter(filled(2 * n, me))) == [n * (n - 1) / 2] * 2
    tensor = filled(2, me)
    assert reduce(tensor, root=1) is tensor
    assert values(tensor) == ([n * (n - 1) / 2] * 2 if me == 1 else [me] * 2)
    collected = gather(filled(2, me), root=1)
    assert (values(collected) == [[r, r] for r in range(n)]) if me == 1 else collected is None
    out = filled(2, -1)
    scatter(out, ms.Tensor(np.arange(2.0 * n, dtype=np.float32)) if me == 0 else None)
    assert values(out) == [2 * me, 2 * me + 1]
    rows = alltoall(None, filled(n * (n - 1) // 2, me), [me] * n, list(range(n)))
    assert values(rows) == [r for r in range(n) for _ in range(me)]

    with pytest.raises(InvalidArgumentError, match="not contiguous"):
        allreduce(ms.Tensor(np.zeros((2, 3), np.float32)).T)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call(rank_pool: RankPool, ranks: int) -> None:
    rank_pool.run(every_call, ranks, timeout=120)


def test_the_example() -> None:
    outputs = run_example("mindspore_allreduce.py", 2, 120)
    assert "slope 3.0" in outputs[0] and "slope" not in outputs[1]
