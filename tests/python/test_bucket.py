"""GradientBucket on real ranks: added gradients, placed gradients, what is counted, and what stays flat."""

from __future__ import annotations

import warnings
from typing import Any

import collective_ops
import numpy as np
import pytest
from collective_ops import GradientBucket, InvalidArgumentError, MismatchError, NotInitializedError
from rank_pool import RankPool
from test_api import open_descriptors, resident_kib

torch = pytest.importorskip("torch")

MIB = 1 << 20


def gradients_of(rank: int, step: int) -> list[Any]:
    """Of many shapes, types and strides; more than a bucket of 1 MiB, and single ones above it."""
    generator = torch.Generator().manual_seed(1000 * step + rank)

    def made(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(*shape, generator=generator).to(dtype)

    tensors = [made(64) for _ in range(20)]
    tensors += [
        made(300, 200),
        made(500, 400),
        made(1000, 400),
        made(7, dtype=torch.float64),
        made(3, 3, dtype=torch.bfloat16),
    ]
    tensors += [made(64, 32).T, made(8, 4, 3, 3).to(memory_format=torch.channels_last), made(()), made(0, 5)]
    tensors += [made(100_000) for _ in range(6)] + [made(500, 700).T, made(65, dtype=torch.float16)]
    return tensors


def in_rank_order(world_size: int, step: int) -> list[Any]:
    """Sums as the core defines them: rank 0 + 1 + ... in float32 or wider, rounded once."""
    sums = []
    for parts in zip(*(gradients_of(rank, step) for rank in range(world_size)), strict=True):
        wide = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
        total = parts[0].to(wide)
        for part in parts[1:]:
            total = total + part.to(wide)
        sums.append(total.to(parts[0].dtype))
    return sums


def add_and_reduce() -> dict[str, int]:
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    bucket = GradientBucket(bucket_size_mb=1, reduce_op="sum")
    gradients = gradients_of(rank, 0)
    addresses = [gradient.data_ptr() for gradient in gradients]
    for step in range(3):
        for gradient, values in zip(gradients, gradients_of(rank, step), strict=True):
            gradient.copy_(values)
            bucket.add(gradient)
        bucket.allreduce()
        expected = in_rank_order(world_size, step)
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
        bucket.clear()
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
        assert [gradient.data_ptr() for gradient in gradients] == addresses
    bucket.allreduce()  # nothing was added since
    assert torch.equal(gradients[0], in_rank_order(world_size, 2)[0])
    return vars(bucket.stats)


@pytest.mark.parametrize("world_size", [1, 3])
def test_added_gradients(rank_pool: RankPool, world_size: int) -> None:
    for stats in rank_pool.run(add_and_reduce, world_size):
        assert stats["gradients"] == 3 * len(gradients_of(0, 0))
        total = sum(g.numel() * g.element_size() for g in gradients_of(0, 0))
        large = sum(
            g.numel() * g.element_size() for g in gradients_of(0, 0) if g.numel() * g.element_size() > MIB
        )
        assert stats["bytes"] == 3 * total
        # In and out, but for those that travel alone.
        assert stats["copied_bytes"] == 2 * 3 * (total - large)
        # float32: two alone, and what is left in pieces of nearly 1 MiB; three other types, a bucket each.
        assert stats["calls"] == 3 * (2 + 4 + 3)


def without_add_or_init() -> None:
    bucket = GradientBucket()
    with pytest.raises(NotInitializedError, match=r"GradientBucket.allreduce.*init_hccl\(\) first"):
        bucket.allreduce()
    collective_ops.init_hccl()
    with pytest.raises(InvalidArgumentError, match="zero_grad works on placed gradients"):
        bucket.zero_grad()
    for size in (0, -1, float("nan"), float("inf"), "25", None):
        with pytest.raises(InvalidArgumentError, match="a size above 0"):
            GradientBucket(bucket_size_mb=size)

    forgotten, kept = np.ones(10), np.ones(10)
    bucket.add(forgotten)
    bucket.clear()
    bucket.add(kept)
    bucket.allreduce()
    assert (forgotten == 1).all() and (kept == collective_ops.world_size()).all()
    average = GradientBucket(reduce_op="avg")
    average.add(kept)
    average.allreduce()
    assert (kept == collective_ops.world_size()).all()
    with pytest.raises(InvalidArgumentError, match="GradientBucket: group=3 is a int"):
        GradientBucket(group=3)
    with pytest.raises(InvalidArgumentError, match='op="sun" is not known; there are sum, avg'):
        GradientBucket(reduce_op="sun")
    total = GradientBucket(reduce_op=torch.distributed.ReduceOp.SUM)
    total.add(kept)
    total.allreduce()
    assert (kept == collective_ops.world_size() ** 2).all()


def test_clear_forgets_and_numpy_works(rank_pool: RankPool) -> None:
    rank_pool.run(without_add_or_init, 2)


def with_none(gradients: list[Any], indices: tuple[int, ...]) -> list[Any]:
    return [None if index in indices else gradient for index, gradient in enumerate(gradients)]


def unused_parameters() -> list[float]:
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    bucket = GradientBucket()
    everywhere = with_none([torch.full((4,), float(rank)) for _ in range(3)], (1,))
    for gradient in everywhere:
        bucket.add(gradient)
    bucket.allreduce()
    bucket.clear()
    assert everywhere[1] is None and bucket.stats.gradients == 2
    assert all((gradient == sum(range(world_size))).all() for gradient in everywhere[::2])

    # As many gradients of one size on every rank, but not of the same parameters.
    mine = with_none([torch.full((4,), float(rank)) for _ in range(3)], (min(rank, 1),))
    for gradient in mine:
        bucket.add(gradient)
    with pytest.raises(MismatchError, match=r"ranks \[1, 2\].*number 0 from 0 on: None on rank 0, 4 float32"):
        bucket.allreduce()
    assert all((gradient == rank).all() for gradient in mine if gradient is not None), "changed"
    bucket.clear()
    collective_ops.barrier()  # found before any call that could differ: the group is whole

    for gradient in [torch.zeros(3), torch.zeros(4 if rank == 2 else 5)]:
        bucket.add(gradient)
    with pytest.raises(MismatchError, match="number 1 from 0 on: 5 float32 on rank 0, 4 float32 on rank 2"):
        bucket.allreduce()
    for gradient in [torch.zeros(3)] * (2 if rank == 1 else 1):
        bucket.add(gradient)
    with pytest.raises(MismatchError, match="number 1 from 0 on: nothing on rank 0, 3 float32 on rank 1"):
        bucket.allreduce()

    model = network()
    placed_bucket = GradientBucket(parameters=model.parameters())
    placed_bucket.zero_grad()
    backward(model, rank, 0)
    if rank == 1:
        next(model.parameters()).grad = None
    for parameter in model.parameters():
        placed_bucket.add(parameter.grad)
    placed_bucket.allreduce()
    return [parameter.grad.double().sum().item() for parameter in model.parameters()]


def test_none_keeps_its_place(rank_pool: RankPool) -> None:
    sums = rank_pool.run(unused_parameters, 3)
    assert sums[0] == sums[1] == sums[2]


def network(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 6 * 6, 500),
        torch.nn.ReLU(),
        torch.nn.Linear(500, 10),
    )


def backward(model: Any, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(4, 1, 8, 8, generator=generator)
    model(images).square().sum().backward()


def local_gradients(world_size: int, step: int) -> list[list[Any]]:
    everyones = []
    for rank in range(world_size):
        model = network()
        backward(model, rank, step)
        everyones.append([parameter.grad for parameter in model.parameters()])
    return everyones


def check_sums(model: Any, world_size: int, step: int) -> None:
    for parameter, *parts in zip(model.parameters(), *local_gradients(world_size, step), strict=True):
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        assert torch.equal(parameter.grad, total)


def placed() -> None:
    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    model = network()
    bucket = GradientBucket(bucket_size_mb=1, parameters=model.parameters())
    places = [parameter.grad.data_ptr() for parameter in model.parameters()]
    parameters = list(model.parameters())

    def in_place() -> bool:
        return [parameter.grad.data_ptr() for parameter in parameters] == places

    # Zeroed where they lie: nothing is copied.
    for step in range(2):
        bucket.zero_grad()
        assert all((parameter.grad == 0).all() for parameter in parameters)
        backward(model, rank, step)
        bucket.allreduce()
        check_sums(model, world_size, step)
        bucket.clear()
        check_sums(model, world_size, step)
        assert in_place()
    assert (bucket.stats.copied_bytes, bucket.stats.placed_anew) == (0, 0)
    assert bucket.stats.calls == 2 * 3  # a weight above 1 MiB has its own
    assert bucket.stats.direct_calls >= 2

    # Set to None by the optimizer, made anew by backward.
    for step in range(2, 4):
        model.zero_grad(set_to_none=True)
        backward(model, rank, step)
        assert not in_place()
        bucket.allreduce()
        check_sums(model, world_size, step)
        assert in_place()
    assert bucket.stats.placed_anew == 2 * len(parameters)

    # add() of placed gradients, as loops written for the other mode do.
    bucket.zero_grad()
    backward(model, rank, 4)
    parameters[0].grad = parameters[0].grad.clone()
    for parameter in parameters:
        bucket.add(parameter.grad)
    assert in_place()
    bucket.allreduce()
    check_sums(model, world_size, 4)

    # A plain call on one gradient is direct too.
    weight = parameters[4].grad
    before = collective_ops.counters()
    collective_ops.allreduce(weight)
    after = collective_ops.counters()
    assert after["direct_calls"] - before["direct_calls"] == 1
    assert after["copied_bytes"] == before["copied_bytes"]

    # None on one rank alone counts as zeros.
    bucket.zero_grad()
    backward(model, rank, 5)
    own = parameters[4].grad.clone()
    if rank == 0:
        parameters[4].grad = None
    bucket.allreduce()
    others = collective_ops.allgather(own)[1:]
    total = torch.zeros_like(own)
    for part in others:
        total += part
    assert torch.equal(parameters[4].grad, total) and in_place()


def test_placed_gradients(rank_pool: RankPool) -> None:
    rank_pool.run(placed, 3, timeout=120)


def test_what_cannot_be_placed() -> None:
    model = network()
    exhausted = model.parameters()
    list(exhausted)
    with pytest.raises(InvalidArgumentError, match=r"give model.parameters\(\) anew"):
        GradientBucket(parameters=exhausted)
    with pytest.raises(InvalidArgumentError, match="a str is no torch parameter"):
        GradientBucket(parameters=["weight"])
    for mistaken in (model, torch.nn.Parameter(torch.zeros(3)), "weight", 3):
        with pytest.raises(InvalidArgumentError, match=r"give model.parameters\(\), or a list"):
            GradientBucket(parameters=mistaken)
    with pytest.raises(InvalidArgumentError, match="placed gradients keep their place"):
        GradientBucket(parameters=network().parameters()).zero_grad(set_to_none=True)
    with pytest.raises(InvalidArgumentError, match="lies on meta"):
        GradientBucket(parameters=[torch.zeros(3, device="meta", requires_grad=True)])
    frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    used = torch.nn.Parameter(torch.zeros(3))
    GradientBucket(parameters=[frozen, used, used])
    assert frozen.grad is None and used.grad.tolist() == [0, 0, 0]


def test_gradients_that_stand_already_are_kept() -> None:
    model = network()
    backward(model, 0, 0)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    bucket = GradientBucket(parameters=model.parameters())
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
    backward(model, 0, 0)  # accumulates
    assert all(torch.equal(p.grad, b + b) for p, b in zip(model.parameters(), before, strict=True))
    bucket.zero_grad()
    assert all((p.grad == 0).all() for p in model.parameters())


def changed_after_placement() -> None:
    collective_ops.init_hccl()
    model = network()
    bucket = GradientBucket(parameters=model.parameters())
    backward(model, 0, 0)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    model.to(memory_format=torch.channels_last)  # exchanges the memory under .grad
    bucket.allreduce()
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
    assert bucket.stats.placed_anew > 0
    model.to(torch.bfloat16)
    with pytest.raises(
        InvalidArgumentError, match=r"placed as torch.float32 on cpu, and is now\s+torch.bfloat16"
    ):
        bucket.allreduce()
    table = torch.nn.Embedding(10, 4, sparse=True)
    bucket = GradientBucket(parameters=table.parameters())
    table.zero_grad()
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InvalidArgumentError, match="a sparse gradient cannot be placed"):
        bucket.allreduce()


def test_gradients_that_no_longer_fit_their_place(rank_pool: RankPool) -> None:
    rank_pool.run(changed_after_placement, 1)


def with_ddp(mode: str) -> list[str]:
    torch.distributed.init_process_group("gloo")
    collective_ops.init_hccl()
    model = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other = network(2)
        GradientBucket(parameters=other.parameters())
        ours = [str(w.message) for w in caught if "DistributedDataParallel reduces" in str(w.message)]
        assert not ours
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            if mode == "placed":
                GradientBucket(parameters=ddp.parameters())
            else:
                backward(ddp, collective_ops.rank(), 0)
                bucket = GradientBucket()
                for parameter in ddp.parameters():
                    bucket.add(parameter.grad)
                bucket.allreduce()
        messages = [str(w.message) for w in caught if "DistributedDataParallel reduces" in str(w.message)]
    torch.distributed.destroy_process_group()
    return messages


@pytest.mark.parametrize("mode", ["placed", "added"])
def test_ddp_and_bucket_for_one_gradient_warn_once(rank_pool: RankPool, mode: str) -> None:
    for messages in rank_pool.run(with_ddp, 2, (mode,)):
        assert len(messages) == 1 and "Use one of the two" in messages[0]


def many_steps(steps: int) -> tuple[int, int, int]:
    """Growth of memory in KiB and of descriptors over the second half; bytes of the last counters."""
    collective_ops.init_hccl()
    rank = collective_ops.rank()
    model = network()
    bucket, collected = GradientBucket(1, parameters=model.parameters()), GradientBucket(1, "avg")
    memory = descriptors = 0
    for step in range(steps):
        if step == steps // 2:
            memory, descriptors = resident_kib(), open_descriptors()
        if step % 3 == 0:
            model.zero_grad()
        bucket.zero_grad()
        backward(model, rank, step)
        bucket.allreduce()
        for parameter in model.parameters():
            collected.add(parameter.grad)
        collected.allreduce()
        collected.clear()
    return resident_kib() - memory, open_descriptors() - descriptors, bucket.stats.rounds


def test_memory_and_descriptors_stay_flat(rank_pool: RankPool) -> None:
    for memory, descriptors, rounds in rank_pool.run(many_steps, 2, (200,), timeout=180):
        assert rounds == 200
        assert descriptors == 0
        assert memory < 8192  # allocators move 2 MiB to and fro; a bucket's memory per step would be 100 MB
