"""Reduce, gather, scatter and all-to-all on real ranks, on every path, with equal and uneven parts."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from collective_ops import (
    GroupBrokenError,
    InvalidArgumentError,
    MismatchError,
    allgather,
    alltoall,
    barrier,
    counters,
    empty,
    gather,
    init_hccl,
    rank,
    reduce,
    reducescatter,
    scatter,
    world_size,
)
from example_ranks import run_example
from rank_pool import RankPool

SIZES = (0, 1, 7, 1000, 200_003)
SHARED, PRIVATE = "direct_calls", "staged_calls"


def numbers(source: int, destination: int, count: int, dtype: str = "float32") -> np.ndarray:
    """What `source` has for `destination`."""
    rng = np.random.default_rng([source, destination, count])
    return oracle.random_array(rng, dtype, count)


def placed(values: np.ndarray, shared: bool) -> np.ndarray:
    """The same values in private memory, or in memory that the ranks share."""
    if not shared:
        return values.copy()
    array = np.from_dlpack(empty(values.shape, values.dtype.name))
    array[...] = values
    return array


def move(shared: bool) -> dict[str, int]:
    init_hccl()
    me, n = rank(), world_size()
    for count in SIZES:
        root = count % n
        parts = [numbers(r, 0, count) for r in range(n)]

        tensor = placed(parts[me], shared)
        assert reduce(tensor, root=root, op="avg") is tensor
        expected = oracle.reduce(parts, "avg", "float32") if me == root else parts[me]
        np.testing.assert_array_equal(tensor, expected)

        out = placed(np.zeros(n * count, np.float32), shared) if me == root else None
        result = gather(placed(parts[me], shared), out, root)
        assert result is out
        if me == root:
            np.testing.assert_array_equal(out, np.concatenate(parts))

        everything = np.concatenate(parts) if me == root else None
        mine = placed(np.zeros(count, np.float32), shared)
        sent = None if everything is None else placed(everything, shared)
        assert scatter(mine, sent, root) is mine
        np.testing.assert_array_equal(mine, parts[me])

        send = placed(np.concatenate([numbers(me, r, count) for r in range(n)]), shared)
        receive = placed(np.zeros(n * count, np.float32), shared)
        assert alltoall(receive, send) is receive
        np.testing.assert_array_equal(receive, np.concatenate([numbers(r, me, count) for r in range(n)]))
    return counters()


@pytest.mark.parametrize("path", ["auto", "staged", "direct", "read"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_parts_on_every_path(rank_pool: RankPool, path: str, ranks: int) -> None:
    for counts in rank_pool.run(move, ranks, (path == "direct",), env={"COLLECTIVE_OPS_PATH": path}):
        assert counts["calls"] == 4 * len(SIZES)
        if path in ("staged", "direct", "read"):
            taken = counts[f"{path}_calls"] + counts["inline_calls"]
            assert taken == counts["calls"], counts


def test_one_rank_and_many(rank_pool: RankPool) -> None:
    rank_pool.run(move, 1, (False,))
    rank_pool.run(move, 8, (True,))


def rows(source: int, destination: int, scale: int) -> int:
    return scale * ((source * 3 + destination * 5) % 4)


def move_uneven(shared: bool) -> None:
    init_hccl()
    me, n = rank(), world_size()
    for scale in (0, 1, 13, 30_011):
        for dtype in ("float32", "int64", "uint8"):
            in_splits = [rows(me, r, scale) for r in range(n)]
            out_splits = [rows(r, me, scale) for r in range(n)]
            sent = [numbers(me, r, 2 * rows(me, r, scale), dtype).reshape(-1, 2) for r in range(n)]
            expected = [numbers(r, me, 2 * rows(r, me, scale), dtype).reshape(-1, 2) for r in range(n)]
            out = placed(np.zeros((sum(out_splits), 2), dtype), shared)
            alltoall(out, placed(np.concatenate(sent), shared), out_splits, in_splits)
            np.testing.assert_array_equal(out, np.concatenate(expected))
            new = alltoall(
                None, placed(np.concatenate(sent), shared), out_splits, in_splits, async_op=True
            ).wait()
            np.testing.assert_array_equal(new, np.concatenate(expected))
            received = [np.zeros_like(part) for part in expected]
            assert alltoall(received, sent) is received
            for part, wanted in zip(received, expected, strict=True):
                np.testing.assert_array_equal(part, wanted)

            root = scale % n
            mine = numbers(me, 9, rows(me, 1, scale), dtype)
            of_all = [numbers(r, 9, rows(r, 1, scale), dtype) for r in range(n)]
            collected = [np.zeros_like(part) for part in of_all]
            gather(placed(mine, shared), collected if me == root else None, root, uneven=True)
            part = placed(np.zeros_like(mine), shared)
            scatter(part, collected if me == root else None, root, uneven=True)
            np.testing.assert_array_equal(part, mine)
            if me == root:
                for part, wanted in zip(collected, of_all, strict=True):
                    np.testing.assert_array_equal(part, wanted)
            collected = [np.zeros_like(part) for part in of_all]
            assert allgather(placed(mine, shared), collected) is collected
            for part, wanted in zip(collected, of_all, strict=True):
                np.testing.assert_array_equal(part, wanted)

            counts = [len(part) for part in of_all]
            whole = [numbers(r, 8, sum(counts), dtype) for r in range(n)]
            part = placed(np.zeros(counts[me], dtype), shared)
            assert reducescatter(placed(whole[me], shared), "max", part, counts=counts) is part
            begin = sum(counts[:me])
            np.testing.assert_array_equal(
                part, oracle.reduce(whole, "max", dtype)[begin : begin + counts[me]]
            )


@pytest.mark.parametrize("path", ["auto", "staged", "direct", "read"])
def test_uneven_parts_on_every_path(rank_pool: RankPool, path: str) -> None:
    # Lists travel through shared memory of their own, so every path can be forced.
    rank_pool.run(move_uneven, 3, (path == "direct",), env={"COLLECTIVE_OPS_PATH": path})


def test_uneven_parts_of_many_ranks(rank_pool: RankPool) -> None:
    rank_pool.run(move_uneven, 8, (False,))


def arrays_of_every_kind() -> None:
    import torch

    init_hccl()
    me, n = rank(), world_size()
    # Reduction onto rank 1 of seven floats: the others keep what they have.
    tensor = torch.full((7,), float(me + 1))
    reduce(tensor, root=1)
    assert tensor.tolist() == [6.0 if me == 1 else me + 1.0] * 7
    view = torch.zeros(4, 6)[:, ::2]
    view += me + 1
    reduce(view, 0, "max")
    assert (view == (n if me == 0 else me + 1)).all()
    frozen = np.full(3, me, np.int32)
    frozen.flags.writeable = me == 0
    reduce(frozen)  # the others' is only read
    assert frozen.tolist() == [3 if me == 0 else me] * 3

    result = gather(torch.full((2, 2), me), root=2)
    assert (result is None) if me != 2 else result.shape == (n, 2, 2)
    if me == 2:
        assert result[:, 0, 1].tolist() == [0, 1, 2]
    assert gather(np.int64(me).reshape(()), async_op=True).wait() is None or me == 0
    parts = [torch.empty(3, dtype=torch.bfloat16) for _ in range(n)] if me == 0 else None
    gather(torch.full((3,), me, dtype=torch.bfloat16), parts)
    assert me != 0 or [part[0].item() for part in parts] == [0, 1, 2]

    out = torch.empty(2, 3).T
    scatter(out, [torch.full((3, 2), 10.0 + r) for r in range(n)] if me == 0 else None)
    assert (out == 10 + me).all()
    table = torch.arange(n * n).reshape(n, n) + 100 * me
    out = torch.empty(n, n, dtype=torch.int64)
    with torch.inference_mode():
        alltoall(out, table)
    assert out.tolist() == [[100 * r + me * n + c for c in range(n)] for r in range(n)]
    # One rank gives nothing and gets three rows.
    in_splits = [0, 0, 0] if me == 0 else [1, 1, 1]
    out_splits = [0, 1, 1]
    out = alltoall(None, torch.full((sum(in_splits), 4), float(me)), out_splits, in_splits)
    assert out.shape == (2, 4) and out[:, 0].tolist() == [1, 2]
    for shape in ((1, 0, 2), (0,), (0, 3)):
        nothing = torch.empty(shape)
        assert reduce(nothing) is nothing
        assert me != 0 or gather(nothing).shape == (n, *shape)
        if me != 0:
            assert gather(nothing) is None
        scatter(nothing, torch.empty(n, *shape) if me == 0 else None)
        empty_out = torch.empty(0, *shape)
        assert alltoall(empty_out, torch.empty(0, *shape)) is empty_out


def test_arrays_of_every_kind(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    rank_pool.run(arrays_of_every_kind, 3)


def refusals() -> None:
    init_hccl()
    me, n = rank(), world_size()
    row, table = np.zeros(5, np.float32), np.zeros((n, 5), np.float32)

    def refused(text: str, call, *args, **kwargs) -> None:
        with pytest.raises(InvalidArgumentError) as error:
            call(*args, **kwargs)
        assert text in str(error.value)

    refused("not a multiple of 2 ranks", alltoall, np.zeros(3), np.zeros(3))
    refused("give 2 numbers, which add up to the 2 rows", alltoall, table, table.copy(), [1, 2])
    refused("give 2 numbers", alltoall, table, table.copy(), [2], [1, 1])
    refused("give a whole number for each rank", alltoall, table, table.copy(), [3, -1], [1, 1])
    refused("give a whole number for each rank", alltoall, None, table, ["a", 1])
    refused("blocks change places", alltoall, table, table)
    refused("both lists of arrays, or both arrays", alltoall, [row, row], table)
    refused("the list has 3 arrays, but there are 2 ranks", alltoall, [row] * 3, [row] * 2)
    refused("tensor is of float64, but out of float32", alltoall, table, table.astype(np.float64))
    refused("out has 9 elements, but 10 come from 2 ranks", gather, row, np.zeros(9, np.float32), me)
    refused("reducescatter: counts need out", reducescatter, row, counts=[2, 3])
    # What only a root can get wrong, each rank as one.
    refused(f"rank {me} is the root, so it gives the tensor", scatter, row, root=me)
    refused("uneven=True", gather, row, [row, row[:2].copy()], me)
    refused("uneven parts need a list", gather, row, root=me, uneven=True)
    refused("root 2 is not a rank of this group", reduce, row, 2)
    barrier()


def test_refusals_leave_the_group_usable(rank_pool: RankPool) -> None:
    rank_pool.run(refusals, 2)


def disagree() -> str:
    init_hccl()
    splits = [1, 1, 1] if rank() != 1 else [1, 1, 4]
    with pytest.raises((MismatchError, GroupBrokenError)) as error:
        alltoall(None, np.zeros((sum(splits), 2), np.float32), [1, 1, 1], splits)
    with pytest.raises(GroupBrokenError):
        barrier()
    return str(error.value)


def test_splits_that_disagree_are_named_on_every_rank(rank_pool: RankPool) -> None:
    for message in rank_pool.run(disagree, 3):
        assert "rank 1 sends 32 bytes to rank 2, which expects 8 bytes" in message


def test_the_example_of_tokens_and_experts() -> None:
    outputs = run_example("token_exchange.py", 3)
    assert outputs == ["630 tokens through 3 experts and back, 0 numbers wrong\n", "", ""]
