"""JAX's arrays: they never change, so every call gives new ones. `make test-jax` runs this."""

from __future__ import annotations

import collective_ops
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
    new_group,
    premul_sum,
    rank,
    reduce,
    reducescatter,
    scatter,
    world_size,
)
from example_ranks import run_example
from rank_pool import RankPool

jax = pytest.importorskip("jax")


def every_call() -> None:
    import jax.numpy as jnp

    init_hccl(timeout=60)
    me, n = rank(), world_size()
    total = n * (n + 1) // 2

    mine = jnp.full((2, 3), me + 1.0)
    result = allreduce(mine)
    assert isinstance(result, jax.Array) and result.shape == (2, 3) and result.dtype == jnp.float32
    assert (result == total).all() and (mine == me + 1).all()
    assert (allreduce(mine, "avg", async_op=True).wait() == total / n).all()
    assert (allreduce(mine, premul_sum(me + 1)) == sum(r * r for r in range(1, n + 1))).all()
    assert allreduce(jnp.float32(me)).shape == ()
    assert allreduce(jnp.zeros((0, 3))).shape == (0, 3)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.complex64):
        result = allreduce(jnp.full(5, me, dtype))
        assert result.dtype == dtype and (result == n * (n - 1) // 2).all()
    assert allreduce(jnp.array([me == 1, False])).tolist() == [True, False]
    large = allreduce(jnp.arange(300_000.0) + me)
    np.testing.assert_array_equal(large, np.arange(300_000.0, dtype=np.float32) * n + n * (n - 1) / 2)
    again = allreduce(large)  # of a result, which stays as it is
    np.testing.assert_array_equal(again, n * np.asarray(large))

    assert broadcast(jnp.full(3, me), root=1).tolist() == [1, 1, 1]
    assert allgather(jnp.full(2, me))[:, 1].tolist() == list(range(n))
    assert [part.tolist() for part in allgather([jnp.zeros(1)] * n, jnp.full(1, float(me)))] == [
        [float(r)] for r in range(n)
    ]
    assert reducescatter(jnp.arange(2 * n)).tolist() == [2 * n * me, n * (2 * me + 1)]
    assert reduce(jnp.full(2, me), root=1).tolist() == ([n * (n - 1) // 2] * 2 if me == 1 else [me] * 2)
    collected = gather(jnp.full(2, me), root=1)
    assert (collected[:, 0].tolist() == list(range(n))) if me == 1 else collected is None
    assert scatter(jnp.zeros(2), jnp.arange(2.0 * n) if me == 0 else None).tolist() == [2 * me, 2 * me + 1]
    rows = alltoall(None, jnp.full((n * (n - 1) // 2, 2), me), [me] * n, list(range(n)))
    assert rows[:, 0].tolist() == [r for r in range(n) for _ in range(me)]

    backwards = new_group(list(range(n))[::-1])
    assert allgather(jnp.full(1, me), group=backwards)[:, 0].tolist() == list(range(n))[::-1]
    assert backwards.allreduce(jnp.ones(2)).tolist() == [n, n]

    gradients = {"w": jnp.full((3, 3), float(me)), "b": [jnp.full(2, 2.0 * me)]}
    means = jax.tree.map(lambda gradient: allreduce(gradient, "avg"), gradients)
    assert (means["w"] == (n - 1) / 2).all() and (means["b"][0] == n - 1).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call(rank_pool: RankPool, ranks: int) -> None:
    # JAX starts threads at its first use: in a rank, never in the process that forks ranks.
    rank_pool.run(every_call, ranks, env={"JAX_PLATFORMS": "cpu"}, timeout=120)


def refused() -> None:
    import jax.numpy as jnp

    init_hccl(timeout=60)
    with pytest.raises(InvalidArgumentError, match="jax.jit or jax.grad traces"):
        jax.jit(lambda x: allreduce(x))(jnp.ones(3))
    with pytest.raises(collective_ops.UnsupportedTypeError, match="int32 with premul_sum"):
        allreduce(jnp.ones(3, jnp.int32), premul_sum(0.5))
    assert allreduce(jnp.ones(3)).tolist() == [world_size()] * 3


def test_refused(rank_pool: RankPool) -> None:
    rank_pool.run(refused, 2, env={"JAX_PLATFORMS": "cpu"}, timeout=120)


def test_the_example() -> None:
    outputs = run_example("jax_allreduce.py", 2, 120, JAX_PLATFORMS="cpu")
    assert outputs[0].startswith("slope 3.0") and outputs[1] == ""
