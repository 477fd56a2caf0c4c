"""Tensors on a card: their calls run in a group of the card's own backend. See standin_card.py."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from collective_ops import (
    CollectiveError,
    GradientBucket,
    InvalidArgumentError,
    MismatchError,
    UnsupportedTypeError,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    finalize,
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
from rank_pool import RankPool

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.backend_registration")


def joined(backend: bool = True) -> tuple[Any, int, int]:
    import standin_card

    standin_card.install(backend)
    init_hccl(timeout=30)
    return standin_card, rank(), world_size()


def every_call() -> list[str]:
    card, me, n = joined()
    on, off = card.on_card, card.off_card
    total = n * (n + 1) / 2

    tensor = on(torch.full((2, 3), me + 1.0))
    assert allreduce(tensor) is tensor and tensor.device.type == "npu"
    assert torch.equal(off(tensor), torch.full((2, 3), total))
    strided = on(torch.full((4, 4), me + 1.0))
    work = allreduce(strided[:, ::2], "avg", async_op=True)
    work.wait()
    work.wait(timeout=30)  # divides once
    assert off(strided)[:, 0].tolist() == [total / n] * 4 and off(strided)[:, 1].tolist() == [me + 1.0] * 4
    numbers = on(torch.full((3,), -me - 1))
    assert off(allreduce(numbers, "avg")).tolist() == [-int(total // n)] * 3
    assert off(allreduce(on(torch.ones(2)), premul_sum(me + 1))).tolist() == [total, total]
    assert off(allreduce(on(torch.tensor(float(me))), "max")).item() == n - 1

    dropped = on(torch.full((4, 2), me + 1.0))
    allreduce(dropped[:, 0], "avg", async_op=True)  # nobody waits
    assert off(dropped).tolist() == [[total / n, me + 1.0]] * 4

    assert off(broadcast(on(torch.full((2,), me)), src=1)).tolist() == [1, 1]
    assert off(allgather(on(torch.full((2,), me))))[:, 1].tolist() == list(range(n))
    parts = [on(torch.zeros(2)) for _ in range(n)]
    assert allgather(parts, on(torch.full((2,), me + 0.0))) is parts
    assert [off(part)[0].item() for part in parts] == list(range(n))
    out = reducescatter(on(torch.arange(2.0 * n)))
    assert off(out).tolist() == [n * 2.0 * me, n * (2.0 * me + 1)]

    kept = on(torch.full((7,), me + 1.0))
    assert reduce(kept, root=1) is kept
    assert off(kept).tolist() == [total if me == 1 else me + 1.0] * 7
    collected = gather(on(torch.full((2,), me)), root=1)
    assert (off(collected)[:, 0].tolist() == list(range(n))) if me == 1 else collected is None
    mine = on(torch.zeros(2))
    scatter(mine, on(torch.arange(2.0 * n)) if me == 0 else None)
    assert off(mine).tolist() == [2 * me, 2 * me + 1]
    table = on(torch.arange(n * n).reshape(n, n) + 100 * me)
    result = off(alltoall(None, table))
    assert result.tolist() == [[100 * r + me * n + c for c in range(n)] for r in range(n)]
    rows = alltoall(None, on(torch.full((n * (n - 1) // 2, 2), me)), [me] * n, list(range(n)))
    assert off(rows)[:, 0].tolist() == [r for r in range(n) for _ in range(me)]
    barrier()

    host = torch.ones(3)
    allreduce(host)  # the host's memory goes the usual way
    assert host.tolist() == [n] * 3
    assert torch.distributed.get_backend() == "hccl"
    finalize()
    assert not torch.distributed.is_initialized()
    return card.calls


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call_runs_on_the_cards_own_backend(rank_pool: RankPool, ranks: int) -> None:
    # No address and no port are given.
    without = {"MASTER_ADDR": None, "MASTER_PORT": None}
    for calls in rank_pool.run(every_call, ranks, env=without):
        assert {"allreduce", "broadcast", "allgather", "reduce", "gather", "scatter"} <= set(calls)
        assert len(set(calls)) == 9  # and three more, whose names PyTorch has changed


def buckets(placed: bool) -> None:
    card, me, n = joined()
    torch.manual_seed(3)
    shapes = [(300, 7), (5,), (40_000,), (3,)]
    for step in range(2):
        mine = [torch.arange(float(np.prod(shape))).reshape(shape) * (me + step) for shape in shapes]
        expected = [sum(torch.arange(g.numel()) * (r + step) for r in range(n)) / n for g in mine]
        if placed:
            parameters = [torch.nn.Parameter(card.on_card(torch.zeros(shape))) for shape in shapes]
            bucket = GradientBucket(0.01, "avg", parameters=parameters)
            for parameter, gradient in zip(parameters, mine, strict=True):
                parameter.grad.add_(card.on_card(gradient))
            bucket.allreduce()
            results = [parameter.grad for parameter in parameters]
        else:
            results = [card.on_card(gradient) for gradient in mine]
            bucket = GradientBucket(0.01, "avg")
            for gradient in results:
                bucket.add(gradient)
            on_host = torch.full((4,), float(me))
            bucket.add(on_host)  # the host's gradients may be among them
            bucket.add(None)
            bucket.allreduce()
            assert on_host.tolist() == [(n - 1) / 2] * 4
            assert bucket.stats.calls == 3  # one of small ones, a large one alone, one of the host
        for result, values in zip(results, expected, strict=True):
            torch.testing.assert_close(card.off_card(result).reshape(-1), values)
    assert len(card.calls) > 2 and set(card.calls) == {"allreduce"}


@pytest.mark.parametrize("placed", [False, True], ids=["added", "placed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_buckets_on_a_card(rank_pool: RankPool, ranks: int, placed: bool) -> None:
    rank_pool.run(buckets, ranks, (placed,))


def one_on_the_host() -> str:
    card, me, n = joined()
    first = card.on_card(torch.ones(4))
    allreduce(first)  # the second call differs, so that nothing of the first helps
    tensor = torch.ones(4) if me == 1 else card.on_card(torch.ones(4))
    with pytest.raises((MismatchError, CollectiveError)) as error:
        allreduce(tensor)
    return str(error.value)


def test_a_rank_with_a_host_tensor_is_named(rank_pool: RankPool) -> None:
    for message in rank_pool.run(one_on_the_host, 3, timeout=30):
        assert "ranks 0,2: a call with tensors of a device" in message
        assert "rank 1: all_reduce of 4 float32, op sum" in message


def different_calls() -> list[str]:
    card, me, n = joined()
    texts = []
    for call in (
        lambda: allreduce(card.on_card(torch.ones(4 + me))),
        lambda: allreduce(card.on_card(torch.ones(4, dtype=torch.int32 if me else torch.int64))),
        lambda: allreduce(card.on_card(torch.ones(4)), "max" if me else "min"),
        lambda: allreduce(card.on_card(torch.ones(4))) if me else broadcast(card.on_card(torch.ones(4))),
        lambda: broadcast(card.on_card(torch.ones(4)), me),
        lambda: alltoall(None, card.on_card(torch.ones(3)), [1] * n, [1, 2] if me else [2, 1]),
        lambda: gather(
            card.on_card(torch.ones(2 + me)),
            [card.on_card(torch.ones(2)) for _ in range(n)] if me == 0 else None,
            uneven=True,
        ),
        lambda: allgather(
            [card.on_card(torch.ones(2 + (r == me))) for r in range(n)], card.on_card(torch.ones(3))
        ),
    ):
        with pytest.raises(MismatchError) as error:
            call()
        texts.append(str(error.value))
    barrier()  # all ranks had the same error, so the group goes on
    assert card.off_card(allreduce(card.on_card(torch.ones(1)))).item() == n
    return texts


def test_calls_that_differ_are_errors_on_all_ranks(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(different_calls, 2, timeout=30)
    assert first == second
    for text, parts in zip(
        first,
        [
            ("ranks [0]: allreduce of 4 elements", "ranks [1]: allreduce of 5 elements of float32 on npu"),
            ("int64", "int32"),
            ("op min", "op max"),
            ("allreduce of", "broadcast of"),
            ("root 0", "root 1"),
            ("rank 0 sends 2 elements to rank 0, which expects 1",),
            ("rank 1 has 3 elements, but the list of rank 0 has 2 for it",),
            ("[3, 2] on rank 0, but [2, 3] on rank 1",),
        ],
        strict=True,
    ):
        for part in parts:
            assert part in text


def no_backend() -> str:
    card, me, n = joined(backend=os.environ["RANK"] != "1")
    with pytest.raises(InvalidArgumentError) as error:
        allreduce(card.on_card(torch.ones(4)))
    barrier()
    return str(error.value)


def test_a_backend_that_is_missing_is_named_on_all_ranks(rank_pool: RankPool) -> None:
    for message in rank_pool.run(no_backend, 3, timeout=30):
        assert "backend hccl, which ranks [1] do not have; import torch_npu" in message


def initialised_before(how: str) -> None:
    import torch.distributed as dist

    card, me, n = joined()
    if how.startswith("alone"):
        if how == "alone" or me == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        ranks = "0, 1" if how == "alone" else "1"
        with pytest.raises(InvalidArgumentError, match=rf"ranks \[{ranks}\] have initialised"):
            allreduce(card.on_card(torch.ones(4)))
        return
    dist.init_process_group("cpu:gloo,npu:hccl" if how == "hccl" else "gloo")
    tensor = card.on_card(torch.ones(4))
    allreduce(tensor)
    assert card.off_card(tensor).tolist() == [n] * 4 and "allreduce" in card.calls
    finalize()
    assert dist.is_initialized()  # the program's own stays
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["gloo", "hccl", "alone", "alone on one rank"])
def test_what_the_program_has_initialised_is_used(rank_pool: RankPool, how: str) -> None:
    rank_pool.run(initialised_before, 2, (how,), timeout=60)


def halves() -> None:
    card, me, n = joined()
    half = new_group([0, 1] if me < 2 else [2, 3])
    first = card.on_card(torch.full((3,), me + 1.0))
    with pytest.raises(InvalidArgumentError, match="on all ranks first"):
        allreduce(first, group=half)
    allreduce(card.on_card(torch.ones(1)))
    with pytest.raises(InvalidArgumentError, match="in ascending order"):
        allreduce(card.on_card(torch.ones(1)), group=new_group([3, 2, 1, 0]))
    for _ in range(2):
        tensor = card.on_card(torch.full((3,), me + 1.0))
        half.allreduce(tensor)
        assert card.off_card(tensor).tolist() == [3.0 if me < 2 else 7.0] * 3
    root = half.broadcast(card.on_card(torch.tensor([me])), 1)  # a rank of the group
    assert card.off_card(root).item() == (1 if me < 2 else 3)
    with pytest.raises(MismatchError, match=r"ranks \[0\].*ranks \[1\]" if me < 2 else r"\[2\].*\[3\]"):
        half.allreduce(card.on_card(torch.ones(me + 1)))
    barrier()


def test_groups_of_some_ranks(rank_pool: RankPool) -> None:
    rank_pool.run(halves, 4, timeout=60)


def wrong_arguments() -> None:
    card, me, n = joined()
    tensor = card.on_card(torch.ones(5))

    def refused(text: str, call: Any, *arguments: Any, **keywords: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=text):
            call(*arguments, **keywords)

    refused("is not known", allreduce, tensor, "mode")
    refused("root 2 is not a rank", broadcast, tensor, 2)
    refused("out has 9 elements, but needs 10", allgather, tensor, card.on_card(torch.ones(9)))
    refused("torch.float64 on npu:0", allgather, tensor, card.on_card(torch.ones(10).double()))
    refused("on cpu", allgather, tensor, torch.ones(10))
    refused("5 rows are no multiple", alltoall, None, tensor)
    refused("add up to the 5 rows", alltoall, None, tensor, [1, 1], [1, 1])
    refused("2 parts", reducescatter, tensor)
    refused("without dimensions", alltoall, None, card.on_card(torch.tensor(1.0)))
    with pytest.raises(UnsupportedTypeError, match="int64 cannot be reduced with premul_sum"):
        allreduce(card.on_card(torch.ones(3, dtype=torch.int64)), premul_sum(0.5))
    barrier()  # both ranks were refused alike


def test_wrong_arguments(rank_pool: RankPool) -> None:
    rank_pool.run(wrong_arguments, 2, timeout=30)
