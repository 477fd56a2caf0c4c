"""The package's functions on real ranks, against an oracle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import collective_ops
import numpy as np
import oracle
import pytest
from collective_ops import InvalidArgumentError, NotInitializedError, UnsupportedTypeError
from rank_pool import RankPool

PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)
SEED = 20_240_229


def typed(values: np.ndarray, dtype: str) -> Any:
    """As a torch tensor where numpy has no such type; the same memory."""
    if oracle.storage(dtype).name == dtype:
        return values
    import torch

    name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
    return torch.from_numpy(values).view(getattr(torch, name))


def inputs(world_size: int, dtype: str, count: int, salt: int) -> list[np.ndarray]:
    return [
        oracle.random_array(np.random.default_rng([SEED, rank, count, salt]), dtype, count)
        for rank in range(world_size)
    ]


def check_allreduce(dtypes: list[str]) -> int:
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    calls = 0
    for dtype in dtypes:
        for op in oracle.ops_of(dtype):
            for count in (0, 1, 7, 1000, 70_001):
                parts = inputs(world_size, dtype, count, calls)
                expected = oracle.reduce(parts, op, dtype)
                mine = parts[rank].copy()
                if calls % 2:  # in memory that the ranks share, every other time
                    shared = collective_ops._core.SharedArray([count], dtype)
                    np.asarray(shared)[:] = mine
                    assert collective_ops.allreduce(shared, op) is shared
                    mine = np.asarray(shared)
                else:
                    collective_ops.allreduce(typed(mine, dtype), op=op)
                same = mine.view(np.uint8) == expected.view(np.uint8)
                assert same.all(), (dtype, op, count, parts, mine, expected)
                calls += 1
    return calls


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(
    "dtypes", [oracle.INTEGERS, oracle.FLOATS, (*oracle.COMPLEX, "bool")], ids=lambda d: d[0]
)
def test_allreduce_of_every_type_and_op(
    rank_pool: RankPool, world_size: int, dtypes: tuple[str, ...]
) -> None:
    pytest.importorskip("torch")
    expected_calls = 5 * sum(len(oracle.ops_of(dtype)) for dtype in dtypes)
    assert rank_pool.run(check_allreduce, world_size, (list(dtypes),)) == [expected_calls] * world_size


def check_movement(dtype: str) -> None:
    """Every type is moved, the 8-bit floats too."""
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    parts = [np.random.default_rng([7, r]).integers(0, 255, 24).astype(np.uint8) for r in range(world_size)]
    if dtype == "bool":
        parts = [part % 2 for part in parts]
    size = oracle.storage(dtype).itemsize

    def mine() -> np.ndarray:
        return np.tile(parts[rank], size).view(oracle.storage(dtype))

    everyones = np.concatenate([np.tile(part, size) for part in parts])
    gathered = collective_ops._core.SharedArray([24 * world_size], dtype)
    collective_ops.allgather(typed(mine(), dtype), gathered)
    np.testing.assert_array_equal(np.asarray(gathered).view(np.uint8), everyones)
    for root in range(world_size):
        values = mine()
        collective_ops.broadcast(typed(values, dtype), root)
        np.testing.assert_array_equal(values.view(np.uint8), np.tile(parts[root], size))
    if dtype.startswith("float8"):
        with pytest.raises(UnsupportedTypeError):
            collective_ops.allreduce(typed(mine(), dtype))
    collective_ops.barrier()


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3", "float8_e5m2", "bfloat16", "bool", "complex128", "uint64", "float16"]
)
def test_types_that_are_moved(rank_pool: RankPool, dtype: str) -> None:
    pytest.importorskip("torch")
    rank_pool.run(check_movement, 3, (dtype,))


def gather_and_scatter() -> None:
    import torch

    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    mine = torch.full((2, 3), float(rank))
    expected = torch.arange(float(world_size)).reshape(-1, 1, 1).expand(world_size, 2, 3)

    result = collective_ops.allgather(mine)
    assert result.shape == (world_size, 2, 3) and torch.equal(result, expected)
    out = torch.empty(world_size * 2, 3)
    assert collective_ops.allgather(mine, out) is out
    assert torch.equal(out, expected.reshape(-1, 3))
    parts = [torch.empty(2, 3) for _ in range(world_size - 1)] + [torch.empty(3, 2).T]
    assert collective_ops.allgather(parts, mine) is parts  # PyTorch's order
    assert all(torch.equal(part, expected[i]) for i, part in enumerate(parts))
    parts = [np.empty((2, 3), np.float32) for _ in range(world_size)]
    collective_ops.allgather(mine, out=parts, async_op=True).wait()
    assert all((part == i).all() for i, part in enumerate(parts))
    assert isinstance(collective_ops.allgather(np.zeros((), np.int8)), np.ndarray)
    assert collective_ops.allgather(np.zeros((), np.int8)).shape == (world_size,)
    assert np.asarray(collective_ops.allgather(memoryview(np.full(2, rank)))).tolist() == [
        [i, i] for i in range(world_size)
    ]

    rows = torch.arange(world_size * 4.0).reshape(world_size * 2, 2) + rank
    total = sum(torch.arange(world_size * 4.0).reshape(world_size, 2, 2) + r for r in range(world_size))
    part = collective_ops.reducescatter(rows)
    assert part.shape == (2, 2) and torch.equal(part, total[rank])
    out = torch.empty(2, 2).T
    assert collective_ops.reducescatter(rows.T.contiguous().T, "avg", out) is out
    assert torch.equal(out, total[rank] / world_size)

    with pytest.raises(InvalidArgumentError, match=r"shape \(5,\) is not a multiple of 3 ranks"):
        collective_ops.reducescatter(torch.zeros(5))
    with pytest.raises(InvalidArgumentError, match="the list has 2 arrays, but there are 3 ranks"):
        collective_ops.allgather(mine, [mine, mine])
    with pytest.raises(InvalidArgumentError, match="each array of the list has 6 elements of float32"):
        collective_ops.allgather(mine, [torch.empty(2, 2)] * 3)
    with pytest.raises(
        InvalidArgumentError, match="out has 3 times the elements of tensor; tensor has 6, out has 6"
    ):
        collective_ops.allgather(mine, torch.empty(6))
    with pytest.raises(InvalidArgumentError, match="tensor is of float32, but out of float64"):
        collective_ops.allgather(mine, torch.empty(18, dtype=torch.float64))
    collective_ops.barrier()  # the refused calls have sent nothing


def test_allgather_and_reducescatter(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    rank_pool.run(gather_and_scatter, 3)


def shapes_and_strides() -> None:
    import torch

    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    total = world_size * (world_size + 1) / 2

    base = torch.zeros(6, 8)
    view = base.T[1:7:2, ::3]
    view += rank + 1
    assert collective_ops.allreduce(view) is view
    assert (view == total).all() and base.sum() == total * view.numel()  # nothing beside it was touched
    work = collective_ops.allreduce(view, "max", async_op=True)
    assert work.wait() is view and work.done()
    assert (view == total).all()

    # Ranks whose memory is laid out differently still reduce element by element.
    mine = torch.arange(12.0).reshape(3, 4)
    mine = mine if rank == 0 else mine.T.contiguous().T
    collective_ops.allreduce(mine)
    assert torch.equal(mine, torch.arange(12.0).reshape(3, 4) * world_size)

    scalar = torch.tensor(float(rank))
    collective_ops.allreduce(scalar)
    assert scalar.item() == sum(range(world_size))
    nothing = torch.empty(0, 4)
    assert collective_ops.allreduce(nothing) is nothing

    leaf = torch.nn.Parameter(torch.full((3,), float(rank)))
    collective_ops.broadcast(leaf, src=1)
    assert leaf.tolist() == [1, 1, 1] and leaf.requires_grad
    collective_ops.allreduce(leaf * 2)

    with pytest.raises(InvalidArgumentError, match='op="mode" is not known; there are sum, avg, prod'):
        collective_ops.allreduce(scalar, op="mode")
    with pytest.raises(InvalidArgumentError, match="root=1 and src=0"):
        collective_ops.broadcast(scalar, 1, src=0)
    with pytest.raises(InvalidArgumentError, match="timeout=-1"):
        collective_ops.allreduce(scalar, timeout=-1)
    with pytest.raises(InvalidArgumentError, match="skip it"):
        collective_ops.allreduce(leaf.grad)
    collective_ops.barrier(timeout=60)


def test_shapes_and_strides(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    rank_pool.run(shapes_and_strides, 3)


def without_torch() -> None:
    assert "torch" not in sys.modules
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    assert collective_ops.device() == "cpu"
    shared = collective_ops.empty((100, 1000))
    assert type(shared) is collective_ops._core.SharedArray
    np.asarray(shared)[:] = rank
    before = collective_ops.counters()
    collective_ops.allreduce(shared)
    after = collective_ops.counters()
    assert (np.asarray(shared) == sum(range(world_size))).all()
    assert after["calls"] - before["calls"] == 1 and after["bytes"] - before["bytes"] == 400_000
    assert after["direct_calls"] - before["direct_calls"] == 1
    assert after["copied_bytes"] == before["copied_bytes"]
    private = bytearray(400_000)
    collective_ops.allreduce(memoryview(private).cast("f"))
    assert collective_ops.counters()["copied_bytes"] > after["copied_bytes"]
    assert "torch" not in sys.modules


def test_without_torch(plain_rank_pool: RankPool) -> None:
    plain_rank_pool.run(without_torch, 4)


def asynchronous() -> list[int]:
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    arrays = [np.full(size, rank + step, np.int64) for step, size in enumerate([5, 100_000, 1, 3000] * 5)]
    works = [collective_ops.allreduce(values, async_op=True) for values in arrays]
    blocking = np.full(3, rank)
    collective_ops.allreduce(blocking)  # after all that were started
    assert all(work.done() for work in works)
    del works[::2]  # nobody waits for these
    for work in works:
        work.wait(timeout=30)
    work = collective_ops.barrier(async_op=True)
    assert work.wait() is None
    for step, values in enumerate(arrays):
        assert (values == sum(range(world_size)) + world_size * step).all()
    dropped = np.full(1000, 1)
    collective_ops.allreduce(dropped, async_op=True)
    kept = dropped[:0].base
    del dropped
    collective_ops.barrier()
    return kept.tolist()


def test_asynchronous(rank_pool: RankPool) -> None:
    assert rank_pool.run(asynchronous, 4) == [[4] * 1000] * 4


def again_and_again() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert not collective_ops.is_initialized()
    for function in (collective_ops.barrier, collective_ops.rank, collective_ops.counters):
        with pytest.raises(NotInitializedError, match=r"call init_hccl\(\) first"):
            function()
    with pytest.raises(NotInitializedError, match="allreduce: there is no group yet"):
        collective_ops.allreduce(np.zeros(1))
    for round_ in range(3):
        collective_ops.init_hccl(rank=rank, world_size=world_size, device_id=rank)
        collective_ops.init_hccl(
            rank=rank, world_size=world_size, device_id=rank
        )  # the same: nothing happens
        with pytest.raises(InvalidArgumentError, match=f"already rank {rank} of {world_size}"):
            collective_ops.init_hccl(rank=rank, world_size=world_size + 1)
        values = np.full(10, rank + round_)
        collective_ops.allreduce(values)
        assert (values == sum(range(world_size)) + world_size * round_).all()
        assert collective_ops.is_initialized() and collective_ops.world_size() == world_size
        collective_ops.finalize()
        assert not collective_ops.is_initialized()
        collective_ops.finalize()
    with pytest.raises(NotInitializedError):
        collective_ops.barrier()


def test_finalize_and_begin_again(rank_pool: RankPool) -> None:
    rank_pool.run(again_and_again, 3)


LOOP = """
export WORLD_SIZE=3
for i in 0 1 2; do
  RANK=$i DEVICE_ID=$i {python} -c "
import array, os, collective_ops as co
co.init_hccl()
values = array.array('i', [co.rank() + 1])
co.allreduce(values)
os.write(1, f'{{co.rank()}} {{co.world_size()}} {{values[0]}}\\n'.encode())  # one write: lines stay whole
" &
done
wait
"""


def test_started_by_a_shell_loop(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    for name in ("COLLECTIVE_OPS_JOB_ID", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    run = subprocess.run(
        ["bash", "-c", LOOP.format(python=sys.executable)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert sorted(run.stdout.splitlines()) == ["0 3 6", "1 3 6", "2 3 6"], run.stderr
    assert run.stderr == ""
    assert list(tmp_path.iterdir()) == []


ALONE = """
import sys
import collective_ops as co
assert not {"torch", "numpy"} & set(sys.modules)
co.init_hccl()
assert (co.rank(), co.world_size(), co.device()) == (0, 1, "cpu")
values = co.empty(3)
memoryview(values)[0] = 2.5
assert co.allreduce(values) is values and memoryview(values)[0] == 2.5
"""


def plain_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "DEVICE_ID", "LOCAL_RANK")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPATH": PACKAGE_PARENT, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_alone_without_torch_or_numpy() -> None:
    run = plain_python(ALONE)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_rank_that_is_a_list_is_found_at_import() -> None:
    run = plain_python("import collective_ops", RANK="0,1,2", WORLD_SIZE="3")
    assert run.returncode == 1
    assert "is a list of 3 numbers" in run.stderr


def test_half_an_identity() -> None:
    run = plain_python("import collective_ops; collective_ops.init_hccl()", WORLD_SIZE="4")
    assert run.returncode == 1
    assert "InvalidArgumentError: init_hccl: there is no rank, neither" in run.stderr


def test_import_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import collective_ops; print(len(set(sys.modules) - before))"
    )
    run = plain_python(code)
    # Counted, not timed: what a dozen modules of the standard library cost is milliseconds.
    assert int(run.stdout) < 80, run.stdout


def test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert collective_ops.device() == torch.device("cpu")
    monkeypatch.setenv("DEVICE_ID", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert collective_ops.device() == torch.device("cuda", 3)


# --- Many calls ------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Mixed:
    """One random call after another, the same on all ranks, each checked against the oracle."""

    SIZES = (0, 1, 3, 16, 100, 1000, 5000)
    LARGE = 40_000

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.plan = np.random.default_rng(SEED)
        self.pool = {
            dtype: [
                oracle.random_array(np.random.default_rng([SEED, r]), dtype, 2 * self.LARGE)
                for r in range(world_size)
            ]
            for dtype in ("int32", "int64", "uint8", "float32", "float64", "float16", "bfloat16")
        }
        self.shared = {dtype: collective_ops._core.SharedArray([self.LARGE], dtype) for dtype in self.pool}

    def step(self) -> None:
        plan = self.plan
        kind = plan.choice(["allreduce", "allreduce", "allgather", "reducescatter", "broadcast", "barrier"])
        dtype = str(plan.choice(list(self.pool)))
        count = self.LARGE if plan.random() < 0.002 else int(plan.choice(self.SIZES))
        ops = [op for op in oracle.ops_of(dtype) if op != "prod" or dtype not in oracle.FLOATS]
        op, root, first = (
            str(plan.choice(ops)),
            int(plan.integers(self.world_size)),
            int(plan.integers(self.LARGE)),
        )
        in_shared, asynchronous = plan.random() < 0.3, plan.random() < 0.2
        if kind == "barrier":
            collective_ops.barrier()
            return
        if kind == "reducescatter":
            count -= count % self.world_size
        parts = [values[first : first + count] for values in self.pool[dtype]]
        mine = parts[self.rank].copy()
        if in_shared:
            target = self.shared[dtype].slice(0, count)
            np.asarray(target)[:] = mine
            mine = np.asarray(target)
        else:
            target = typed(mine, dtype)
        expected, result = self.call(kind, dtype, op, root, parts, target, mine, asynchronous)
        if result.tobytes() != expected.tobytes():
            raise AssertionError(f"{kind} of {count} {dtype}, {op}, root {root}: {result} is not {expected}")

    def call(
        self,
        kind: str,
        dtype: str,
        op: str,
        root: int,
        parts: list,
        target: Any,
        mine: np.ndarray,
        asynchronous: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(expected, result)"""
        result = mine
        if kind == "allreduce":
            work = collective_ops.allreduce(target, op, asynchronous)
            expected = oracle.reduce(parts, op, dtype)
        elif kind == "broadcast":
            work = collective_ops.broadcast(target, root, asynchronous)
            expected = parts[root]
        elif kind == "allgather":
            result = np.empty(len(mine) * self.world_size, mine.dtype)
            work = collective_ops.allgather(target, typed(result, dtype), asynchronous)
            expected = np.concatenate(parts)
        else:
            result = np.empty(len(mine) // self.world_size, mine.dtype)
            work = collective_ops.reducescatter(target, op, typed(result, dtype), asynchronous)
            own = slice(self.rank * len(result), (self.rank + 1) * len(result))
            expected = oracle.reduce([part[own] for part in parts], op, dtype)
        if asynchronous:
            work.wait()
        return expected, result


def many_calls(calls: int) -> tuple[int, int, int]:
    """Growth of resident memory in KiB and of open descriptors in the last quarter; calls counted."""
    collective_ops.init_hccl()
    mixed = Mixed(collective_ops.rank(), collective_ops.world_size())
    for _ in range(calls * 3 // 4):
        mixed.step()
    memory, descriptors = resident_kib(), open_descriptors()
    for _ in range(calls - calls * 3 // 4):
        mixed.step()
    return resident_kib() - memory, open_descriptors() - descriptors, collective_ops.counters()["calls"]


def test_twenty_thousand_calls_are_exact_and_leave_nothing(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    started = time.monotonic()
    grown = rank_pool.run(many_calls, 8, (20_000,), timeout=600)
    print(f"20,000 calls on 8 ranks: {time.monotonic() - started:.1f} s, growth {grown}")
    for memory, descriptors, calls in grown:
        assert calls == 20_000
        assert descriptors == 0
        assert memory < 2048
