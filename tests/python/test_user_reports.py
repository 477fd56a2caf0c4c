"""What users reported of other libraries' collectives, each with the value or the error that is right here.

The name of a case is the report's. What costs memory, time or processes is in test_user_reports_load.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import collective_ops
import numpy as np
import oracle
import pytest
from collective_ops import (
    CollectiveTimeoutError,
    GroupBrokenError,
    InvalidArgumentError,
    MismatchError,
    UnsupportedTypeError,
    allgather,
    allreduce,
    alltoall,
    barrier,
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
from rank_pool import RankPool

torch = pytest.importorskip("torch")


def raised(error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def reduce_leaves_the_others_alone() -> None:
    for root in range(world_size()):
        tensor = torch.full((7,), rank() + 1.0)
        reduce(tensor, root=root)
        assert tensor.tolist() == [6.0 if rank() == root else rank() + 1.0] * 7


def tensors_without_elements() -> None:
    n = world_size()
    for shape in ((1, 0, 2), (0,), (0, 3)):
        nothing = torch.empty(shape)
        for op in ("sum", "max", premul_sum(2)):
            assert allreduce(nothing, op) is nothing
        assert broadcast(nothing, 1) is nothing
        assert allgather(nothing).shape == (n, *shape)
        assert allgather(nothing, [torch.empty(shape) for _ in range(n)])[0].shape == shape
        assert reducescatter(torch.empty(n * shape[0], *shape[1:])).shape == shape
        assert reduce(nothing) is nothing
        assert gather(nothing) is None or rank() == 0
        assert scatter(nothing, torch.empty(n, *shape) if rank() == 0 else None) is nothing
        assert alltoall(None, torch.empty(n * shape[0], *shape[1:])).shape == (n * shape[0], *shape[1:])


def one_rank_sends_no_rows() -> None:
    sends = [0, 0, 0] if rank() == 0 else [3, 1, 1]
    receives = [0, 3, 3] if rank() == 0 else [0, 1, 1]
    rows = alltoall(None, torch.full((sum(sends), 2), float(rank())), receives, sends)
    assert rows[:, 0].tolist() == [float(r) for r, count in enumerate(receives) for _ in range(count)]


VALUES = (3, 5, 6)
OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")


def expected(op: str, dtype: str) -> Any:
    """Of VALUES on three ranks, or None where this is no reduction of that type. Factors are 0.5, 1, 1.5."""
    floating = dtype in oracle.FLOATS or dtype in oracle.COMPLEX
    if op == "premul_sum":
        return 15.5 if floating else None
    if op not in (oracle.ops_of(dtype) if dtype not in oracle.FLOAT8 else ()):
        return None
    if dtype == "bool":
        return {"bxor": True}.get(op, True)
    exact = {"sum": 14, "avg": 14 / 3, "prod": 90, "min": 3, "max": 6, "band": 0, "bor": 7, "bxor": 0}[op]
    return exact if floating else int(exact)


def every_op_with_every_type() -> None:
    names = {"float8_e4m3": "float8_e4m3fn"}
    seen = 0
    for dtype in collective_ops.data_types:
        torch_type = getattr(torch, names.get(dtype, dtype))
        for op in OPS:
            tensor = torch.full((5,), VALUES[rank()], dtype=torch.float32).to(torch_type)
            given = premul_sum((rank() + 1) / 2) if op == "premul_sum" else op
            value = expected(op, dtype)
            if value is None:
                text = raised(UnsupportedTypeError, lambda t=tensor, o=given: allreduce(t, o))
                assert op in text and dtype in text
                assert raised(TypeError, lambda t=tensor, o=given: reduce(t, 1, o))
                continue
            wanted = torch.full((5,), value, dtype=torch.float64).to(torch_type)
            result = allreduce(tensor.clone(), given)
            assert torch.equal(result, wanted), (op, dtype, result, wanted)
            on_root = reduce(tensor.clone(), 2, given)
            assert torch.equal(on_root, wanted if rank() == 2 else tensor)
            parts = reducescatter(tensor[:3].clone(), given)
            assert torch.equal(parts, wanted[:1])
            seen += 1
    assert seen == 4 * 6 + 2 * 4 + 8 * 8 + 7  # floats, complex, integers, bool
    raised(TypeError, lambda: allreduce(torch.zeros(2, dtype=torch.complex32)))
    barrier()  # usable after all of them


def integers_at_their_ends() -> None:
    pairs = (("int8", (120, 100), -36), ("uint8", (200, 100), 44), ("int16", (32_767, 1), -32_768))
    for dtype, (first, second), wrapped in pairs:
        values = np.array([first if rank() == 0 else second] * 9, dtype)
        allreduce(values)
        assert values.tolist() == [wrapped] * 9
    for dtype in ("int8", "int16", "int32", "int64"):
        values = np.array([0 if rank() == 0 else -1] * 9, dtype)
        assert allreduce(values.copy(), "max").tolist() == [0] * 9
        assert allreduce(values.copy(), "min").tolist() == [-1] * 9
        assert allreduce(values, "avg").tolist() == [0] * 9  # -1/2, towards zero
    values = np.array([2**63 if rank() == 0 else 1], np.uint64)
    assert allreduce(values.copy(), "max").tolist() == [2**63]
    assert allreduce(values, "min").tolist() == [1]


def factors_of_every_kind() -> None:
    from torch.distributed import _make_nccl_premul_sum

    me, n = rank(), world_size()
    rng = [np.random.default_rng([9, r]).standard_normal(1001).astype(np.float32) for r in range(n)]
    factors = [np.float32(0.1 * (r + 1)) for r in range(n)]
    wanted = factors[0] * rng[0]
    for factor, values in zip(factors[1:], rng[1:], strict=True):
        wanted = wanted + factor * values
    for op in (premul_sum(factors[me]), _make_nccl_premul_sum(float(factors[me]))):
        result = allreduce(rng[me].copy(), op)
        np.testing.assert_array_equal(result, wanted)
    op = _make_nccl_premul_sum(torch.tensor([0.5]))
    assert allreduce(torch.full((3,), 2 + 2j), op).tolist() == [n * (1 + 1j)] * 3
    assert torch.equal(allreduce(torch.ones(3, dtype=torch.bfloat16), op), torch.full((3,), n / 2).bfloat16())
    bucket = collective_ops.GradientBucket(1, premul_sum(1 / n))
    gradients = [torch.full((4,), float(me)), torch.full((2,), float(n))]
    for gradient in gradients:
        bucket.add(gradient)
    bucket.allreduce()
    torch.testing.assert_close(gradients, [torch.full((4,), (n - 1) / 2), torch.full((2,), float(n))])
    for bad in ("premul_sum", "PREMUL_SUM"):
        assert "give collective_ops.premul_sum(factor)" in raised(
            ValueError, lambda b=bad: allreduce(np.ones(1), b)
        )
    barrier()


def splits_are_checked() -> None:
    table = np.zeros((4, 2), np.float32)
    before = collective_ops.counters()["calls"]
    for call, text in (
        (lambda: alltoall(None, table, [2, 2], [1, 2]), "add up to the 4 rows"),
        (lambda: alltoall(None, table, [2, 2], [4]), "give 2 numbers"),
        (lambda: alltoall(None, table[:3]), "not a multiple of 2 ranks"),
    ):
        assert text in raised(ValueError, call)
    assert collective_ops.counters()["calls"] == before  # nothing travelled
    splits = [1, 3] if rank() == 0 else [2, 2]
    text = raised(
        (MismatchError, GroupBrokenError),
        lambda: alltoall(np.zeros((3, 2), np.float32), table, [1, 2], splits),
    )
    assert "rank 0 sends 24 bytes to rank 1, which expects 8 bytes" in text


def sizes_that_differ(first: int, second: int) -> None:
    counts = (first, second)
    values = np.full(counts[rank()], rank() + 1.0, np.float32)
    text = raised((MismatchError, GroupBrokenError), lambda: allreduce(values))
    assert f"all_reduce of {first} float32" in text and f"all_reduce of {second} float32" in text
    assert (values == rank() + 1).all()
    assert "all_reduce" in raised(GroupBrokenError, lambda: allreduce(values))


def half_the_room() -> None:
    """What one rank sends is twice what the other has room for."""
    sends, receives = ([0, 8], [0, 0]) if rank() == 0 else ([0, 0], [4, 0])
    text = raised(
        (MismatchError, GroupBrokenError),
        lambda: alltoall(np.zeros(sum(receives)), np.ones(sum(sends)), receives, sends),
    )
    assert "rank 0 sends 64 bytes to rank 1, which expects 32 bytes" in text


def collectives_that_differ() -> None:
    values = np.ones(10)
    call = (lambda: allreduce(values)) if rank() == 0 else (lambda: broadcast(values, 0))
    text = raised((MismatchError, GroupBrokenError), call)
    assert "rank 0: all_reduce of 10 float64" in text and "rank 1: broadcast of 10 float64" in text


def a_call_after_a_failed_one() -> None:
    """One rank fails before its call, the other is in it; then both go on as if nothing had been."""
    values = np.full(1000, rank() + 1.0)
    if rank() == 0:
        raised(InvalidArgumentError, lambda: allreduce([1.0, 2.0]))
    else:
        raised((MismatchError, GroupBrokenError), lambda: allreduce(values))
    for _ in range(3):
        raised((MismatchError, GroupBrokenError), lambda: allreduce(values))
    assert (values == rank() + 1).all()


def timeouts_mean_what_they_say() -> None:
    values = np.ones(3)
    for timeout in (None, 0, 0.0, 1e9, timedelta(days=3), 50):
        allreduce(values, timeout=timeout)
        barrier(timeout=timeout)
    for timeout in (-1, "soon", float("nan"), 1e10):
        assert "timeout" in raised(ValueError, lambda t=timeout: barrier(timeout=t))
    work = allreduce(values, async_op=True)
    work.wait(0)
    impatient = collective_ops.new_group(timeout=0.1, name="impatient")
    if rank() == 1:
        time.sleep(0.3)  # longer than that group's own limit; the call's own counts
    impatient.barrier(timeout=30)
    if rank() == 1:
        time.sleep(0.3)
    impatient.barrier(timeout=0)  # for ever
    barrier()


def shapes_of_the_right_size() -> None:
    n, me = world_size(), rank()
    mine = torch.arange(3.0) + me
    for shape in ((n, 3), (3 * n,), (3, n), (1, n, 3)):
        out = torch.empty(shape)
        assert allgather(mine, out) is out
        assert out.reshape(-1).tolist() == [i + r for r in range(n) for i in range(3)]
        whole = torch.arange(3.0 * n).reshape(shape)
        part = reducescatter(whole, out=torch.empty(3))
        assert part.tolist() == [n * (3.0 * me + i) for i in range(3)]
    parts = [torch.empty(r + 1) for r in range(n)]
    allgather(torch.full((me + 1,), float(me)), parts)
    assert [part.tolist() for part in parts] == [[float(r)] * (r + 1) for r in range(n)]


def inference_mode() -> None:
    n, me = world_size(), rank()
    with torch.inference_mode():
        made = torch.full((4,), me + 1.0)
        assert made.is_inference()
        assert allreduce(made).tolist() == [n * (n + 1) / 2] * 4
        assert broadcast(torch.full((2,), float(me)), 1).tolist() == [1, 1]
        assert allgather(torch.full((1,), float(me))).reshape(-1).tolist() == list(range(n))
        assert reducescatter(torch.arange(float(n))).tolist() == [n * me]
        assert reduce(torch.ones(2), 0).tolist() == ([n, n] if me == 0 else [1, 1])
        assert me != 0 or gather(torch.ones(2), torch.empty(n, 2)).tolist() == [[1, 1]] * n
        if me != 0:
            gather(torch.ones(2))
        assert scatter(torch.empty(1), torch.arange(float(n)) if me == 0 else None).item() == me
        assert alltoall(None, torch.full((n,), float(me))).tolist() == list(range(n))
        barrier()


CASES = [
    (reduce_leaves_the_others_alone, 3, (), "pytorch#76527"),
    (tensors_without_elements, 3, (), "pytorch#85234"),
    (one_rank_sends_no_rows, 3, (), "gloo#179"),
    (every_op_with_every_type, 3, (), "pytorch#149781"),
    (integers_at_their_ends, 2, (), "nccl#422"),
    (factors_of_every_kind, 3, (), "torch-xpu-ops#3059"),
    (splits_are_checked, 2, (), "pytorch#101380"),
    (sizes_that_differ, 2, (1000, 2000), "nccl#1417"),
    (sizes_that_differ, 2, (4, 5), "gloo#456"),
    (half_the_room, 2, (), "pytorch#113376"),
    (collectives_that_differ, 2, (), "pytorch#79901"),
    (a_call_after_a_failed_one, 2, (), "pytorch#174844"),
    (timeouts_mean_what_they_say, 2, (), "Ascend/pytorch#54"),
    (shapes_of_the_right_size, 2, (), "pytorch#178798"),
    (inference_mode, 2, (), "pytorch#126032"),
]


def in_a_group(case: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    init_hccl(timeout=600)
    case(*arguments)


@pytest.mark.parametrize(
    ("case", "ranks", "arguments"), [row[:3] for row in CASES], ids=[row[3] for row in CASES]
)
def test_report(
    rank_pool: RankPool, case: Callable[..., None], ranks: int, arguments: tuple[Any, ...]
) -> None:
    rank_pool.run(in_a_group, ranks, (case, arguments))


def impatient_barrier(told: Path) -> None:
    """On rank 0 alone; the other looks in later."""
    init_hccl(timeout=600)
    if rank() == 0:
        text = raised(CollectiveTimeoutError, lambda: barrier(timeout=0.2))
        assert "waited 0.2" in text and "rank 1" in text
        told.touch()
        return
    while not told.exists():
        time.sleep(0.01)
    assert "waited 0.2" in raised(GroupBrokenError, barrier)


def test_a_calls_own_timeout_is_shorter_than_the_groups(rank_pool: RankPool, tmp_path: Path) -> None:
    """pytorch#179691"""
    rank_pool.run(impatient_barrier, 2, (tmp_path / "told",), timeout=60)
