"""Every collective of the PyTorch backend: types, operations, layouts, blocking or not."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from torch_groups import (  # noqa: E402
    LAYOUTS,
    OPS,
    TORCH_TYPES,
    laid_out,
    process_group,
    rank,
    same_bits,
    to_array,
    to_tensor,
    world_size,
)

COUNT = 24
MOVED = ("uint8", "int64", "bfloat16", "float32", "complex64", "bool")


def values(source: int, part: int, dtype: str, count: int = COUNT) -> np.ndarray:
    """What rank `source` has for its `part`."""
    return oracle.random_array(np.random.default_rng([source, part, count]), dtype, count)


def tensor(
    source: int, part: int, dtype: str, layout: str = "plain", count: int = COUNT
) -> torch.Tensor | None:
    return laid_out(to_tensor(values(source, part, dtype, count), dtype), layout)


def blank(dtype: str, count: int, layout: str = "plain") -> torch.Tensor | None:
    return laid_out(torch.zeros(count, dtype=TORCH_TYPES[dtype]), layout)


def reduced(part: int, op: str, dtype: str, count: int = COUNT) -> np.ndarray:
    return oracle.reduce([values(r, part, dtype, count) for r in range(world_size())], op, dtype)


def finish(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


class Checks:
    """Collects what differs, so that one run shows all."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.done = 0

    def equal(self, what: str, got: torch.Tensor, dtype: str, wanted: np.ndarray) -> None:
        self.done += 1
        if not same_bits(to_array(got, dtype), wanted.reshape(-1)):
            self.wrong.append(
                f"rank {rank()}: {what}: {to_array(got, dtype)[:4]} for {wanted.reshape(-1)[:4]}"
            )


def check_reductions(checks: Checks, dtype: str, layout: str, asynchronous: bool) -> None:
    n, me = world_size(), rank()
    for op in oracle.ops_of(dtype):
        if dtype in oracle.COMPLEX and op == "prod":
            continue  # c10d itself refuses it
        torch_op = OPS[op]
        what = f"{op} {dtype} {layout} async={asynchronous}"
        own = tensor(me, 0, dtype, layout)
        if own is None:
            return
        finish(dist.all_reduce(own, torch_op, async_op=asynchronous))
        checks.equal(f"all_reduce {what}", own, dtype, reduced(0, op, dtype))

        root = n - 1
        own = tensor(me, 1, dtype, layout)
        finish(dist.reduce(own, root, torch_op, async_op=asynchronous))
        checks.equal(
            f"reduce {what}", own, dtype, reduced(1, op, dtype) if me == root else values(me, 1, dtype)
        )

        whole = tensor(me, 2, dtype, layout, count=COUNT * n)
        out = blank(dtype, COUNT, layout)
        finish(dist.reduce_scatter_single(out, whole, torch_op, async_op=asynchronous))
        wanted = reduced(2, op, dtype, COUNT * n)[me * COUNT : (me + 1) * COUNT]
        checks.equal(f"reduce_scatter_tensor {what}", out, dtype, wanted)

        parts = [tensor(me, 3 + r, dtype, layout, count=4 * (r + 1)) for r in range(n)]
        out = blank(dtype, 4 * (me + 1), layout)
        finish(dist.reduce_scatter(out, parts, torch_op, async_op=asynchronous))
        checks.equal(f"reduce_scatter, uneven, {what}", out, dtype, reduced(3 + me, op, dtype, 4 * (me + 1)))


def reduction_types(types: tuple[str, ...]) -> tuple[list[str], int]:
    checks = Checks()
    with process_group():
        for dtype in types:
            for layout in LAYOUTS:
                for asynchronous in (False, True):
                    check_reductions(checks, dtype, layout, asynchronous)
    return checks.wrong, checks.done


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "types",
    [oracle.INTEGERS, oracle.FLOATS, (*oracle.COMPLEX, "bool")],
    ids=["integers", "floats", "complex_and_bool"],
)
def test_reductions(rank_pool: RankPool, types: tuple[str, ...], ranks: int) -> None:
    results = rank_pool.run(reduction_types, ranks, (types,), timeout=120)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    assert min(done for _, done in results) > 100


def check_movements(checks: Checks, dtype: str, layout: str, asynchronous: bool) -> None:
    n, me = world_size(), rank()
    what = f"{dtype} {layout} async={asynchronous}"
    own = tensor(me, 0, dtype, layout)
    if own is None:
        return
    finish(dist.broadcast(own, 1, async_op=asynchronous))
    checks.equal(f"broadcast {what}", own, dtype, values(1, 0, dtype))

    everybody = np.concatenate([values(r, 1, dtype) for r in range(n)])
    own, out = tensor(me, 1, dtype, layout), blank(dtype, COUNT * n, layout)
    finish(dist.all_gather_single(out, own, async_op=asynchronous))
    checks.equal(f"all_gather_into_tensor {what}", out, dtype, everybody)

    sizes = [4 * (r + 1) for r in range(n)]
    for lengths in ([COUNT] * n, sizes):
        own = tensor(me, 2, dtype, layout, count=lengths[me])
        outs = [blank(dtype, length, layout) for length in lengths]
        finish(dist.all_gather(outs, own, async_op=asynchronous))
        for r, out in enumerate(outs):
            checks.equal(f"all_gather {lengths} from {r} {what}", out, dtype, values(r, 2, dtype, lengths[r]))

        outs = [blank(dtype, length, layout) for length in lengths] if me == 0 else None
        finish(dist.gather(own, outs, 0, async_op=asynchronous))
        for r, out in enumerate(outs or []):
            checks.equal(f"gather {lengths} from {r} {what}", out, dtype, values(r, 2, dtype, lengths[r]))

        out = blank(dtype, lengths[me], layout)
        ins = [tensor(0, 3 + r, dtype, layout, count=lengths[r]) for r in range(n)] if me == 0 else None
        finish(dist.scatter(out, ins, 0, async_op=asynchronous))
        checks.equal(f"scatter {lengths} {what}", out, dtype, values(0, 3 + me, dtype, lengths[me]))


def check_exchanges(checks: Checks, dtype: str, layout: str, asynchronous: bool) -> None:
    n, me = world_size(), rank()
    what = f"{dtype} {layout} async={asynchronous}"
    if tensor(me, 0, dtype, layout) is None:
        return
    outs = [blank(dtype, 4 * (r + me), layout) for r in range(n)]
    ins = [tensor(me, r, dtype, layout, count=4 * (r + me)) for r in range(n)]
    finish(dist.all_to_all(outs, ins, async_op=asynchronous))
    for r, out in enumerate(outs):
        checks.equal(f"all_to_all from {r} {what}", out, dtype, values(r, me, dtype, 4 * (r + me)))

    own = laid_out(to_tensor(np.concatenate([values(me, r, dtype) for r in range(n)]), dtype), layout)
    out = blank(dtype, COUNT * n, layout)
    if own.shape[0] != COUNT * n:
        return  # another first dimension
    finish(dist.all_to_all_single(out, own, async_op=asynchronous))
    wanted = np.concatenate([values(r, me, dtype) for r in range(n)])
    checks.equal(f"all_to_all_single {what}", out, dtype, wanted)

    sends = [4 * r for r in range(n)]  # nothing for rank 0
    receives = [4 * me] * n
    own = laid_out(
        to_tensor(np.concatenate([values(me, r, dtype, s) for r, s in enumerate(sends)]), dtype), layout
    )
    out = blank(dtype, sum(receives), layout)
    finish(dist.all_to_all_single(out, own, receives, sends, async_op=asynchronous))
    wanted = np.concatenate([values(r, me, dtype, 4 * me) for r in range(n)])
    checks.equal(f"all_to_all_single with splits {what}", out, dtype, wanted)


def movement_types() -> tuple[list[str], int]:
    checks = Checks()
    with process_group():
        for dtype in MOVED:
            for layout in LAYOUTS:
                for asynchronous in (False, True):
                    check_movements(checks, dtype, layout, asynchronous)
                    check_exchanges(checks, dtype, layout, asynchronous)
    return checks.wrong, checks.done


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_movements(rank_pool: RankPool, ranks: int) -> None:
    results = rank_pool.run(movement_types, ranks, timeout=120)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    assert min(done for _, done in results) > 300


def backend_counters() -> dict[str, int]:
    return dist.group.WORLD._get_backend(torch.device("cpu")).counters()


def coalesced() -> list[str]:
    checks = Checks()
    n, me = world_size(), rank()
    large = 8192  # 32 KiB of float32: just too large to be packed
    mixed = [("float32", 8), ("int64", 12), ("float32", large), ("float32", 4), ("bfloat16", 16)]
    with process_group():
        for asynchronous in (False, True):
            tensors = [tensor(me, i, dtype, count=count) for i, (dtype, count) in enumerate(mixed)]
            before = backend_counters()["calls"]
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for one in tensors:
                    dist.all_reduce(one)
            if asynchronous:
                manager.wait()
            calls = backend_counters()["calls"] - before
            if calls != 4:
                checks.wrong.append(f"{calls} calls; the two small of float32 go together")
            for i, (dtype, count) in enumerate(mixed):
                checks.equal(f"all_reduce {i}", tensors[i], dtype, reduced(i, "sum", dtype, count))

            outs = [blank(dtype, count * n) for dtype, count in mixed]
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for i, (dtype, count) in enumerate(mixed):
                    dist.all_gather_single(outs[i], tensor(me, i, dtype, count=count))
            if asynchronous:
                manager.wait()
            for i, (dtype, count) in enumerate(mixed):
                wanted = np.concatenate([values(r, i, dtype, count) for r in range(n)])
                checks.equal(f"all_gather_into_tensor {i}", outs[i], dtype, wanted)

            outs = [blank(dtype, count) for dtype, count in mixed]
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for i, (dtype, count) in enumerate(mixed):
                    dist.reduce_scatter_single(outs[i], tensor(me, i, dtype, count=count * n))
            if asynchronous:
                manager.wait()
            for i, (dtype, count) in enumerate(mixed):
                wanted = reduced(i, "sum", dtype, count * n)[me * count : (me + 1) * count]
                checks.equal(f"reduce_scatter_tensor {i}", outs[i], dtype, wanted)
    return checks.wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_coalesced_calls_of_mixed_types(rank_pool: RankPool, ranks: int) -> None:
    assert rank_pool.run(coalesced, ranks) == [[]] * ranks


def coalesced_layouts() -> list[str]:
    """Packed calls whose tensors lie otherwise on each rank: the second rank's are strided, the last rank's
    inputs are conjugated lazily, one tensor is empty."""
    checks = Checks()
    n, me = world_size(), rank()
    counts, dtype = (6, 0, 10), "complex64"

    def laid(values: torch.Tensor, written: bool) -> torch.Tensor:
        if me == 1 and values.numel():
            return laid_out(values, "strided")
        return values.clone() if written or me != n - 1 else values.conj_physical().conj()

    with process_group():
        group = dist.group.WORLD
        ins = [laid(tensor(me, i, dtype, count=count * n), False) for i, count in enumerate(counts)]
        outs = [laid(blank(dtype, count), True) for count in counts]
        before = backend_counters()["calls"]
        group.reduce_scatter_tensor_coalesced(outs, ins).wait()
        for i, count in enumerate(counts):
            wanted = reduced(i, "sum", dtype, count * n)[me * count : (me + 1) * count]
            checks.equal(f"reduce_scatter {i}", outs[i], dtype, wanted)

        ins = [laid(tensor(me, i, dtype, count=count), False) for i, count in enumerate(counts)]
        outs = [laid(blank(dtype, count * n), True) for count in counts]
        group.allgather_into_tensor_coalesced(outs, ins).wait()
        for i, count in enumerate(counts):
            wanted = np.concatenate([values(r, i, dtype, count) for r in range(n)])
            checks.equal(f"all_gather {i}", outs[i], dtype, wanted)

        both = [laid(tensor(me, i, dtype, count=count), True) for i, count in enumerate(counts)]
        group.allreduce_coalesced(both).wait()
        for i, count in enumerate(counts):
            checks.equal(f"all_reduce {i}", both[i], dtype, reduced(i, "sum", dtype, count))
        if backend_counters()["calls"] - before != 3:
            checks.wrong.append("each list of tensors goes together")
    return checks.wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_coalesced_calls_of_any_layout(rank_pool: RankPool, ranks: int) -> None:
    assert rank_pool.run(coalesced_layouts, ranks) == [[]] * ranks


def odd_shapes() -> list[str]:
    checks = Checks()
    n, me = world_size(), rank()
    with process_group():
        scalar = torch.tensor(float(me + 1))
        dist.all_reduce(scalar)
        assert scalar.item() == n * (n + 1) / 2 and scalar.dim() == 0
        nothing = torch.empty(1, 0, 2)
        dist.all_reduce(nothing)
        dist.broadcast(nothing, 0)
        dist.all_gather([torch.empty(1, 0, 2) for _ in range(n)], nothing)
        dist.reduce_scatter_single(torch.empty(0), torch.empty(0))
        dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3))
        # Rank 0 sends nothing and receives three rows.
        rows = torch.full((0 if me == 0 else 3, 2), float(me))
        received = torch.zeros(3 * (n - 1) if me == 0 else 0, 2)
        sends = [0] * n if me == 0 else [3] + [0] * (n - 1)
        receives = [0] + [3] * (n - 1) if me == 0 else [0] * n
        dist.all_to_all_single(received, rows, receives, sends)
        if me == 0:
            assert received[:, 0].tolist() == [float(r) for r in range(1, n) for _ in range(3)]
        # Flat outputs of any shape.
        out = torch.zeros(n, 3)
        dist.all_gather_single(out, torch.full((3,), float(me)))
        assert out[:, 2].tolist() == [float(r) for r in range(n)]
        own = torch.zeros(3)
        dist.reduce_scatter_single(own, torch.ones(n, 3))
        assert own.tolist() == [float(n)] * 3
        # A part of the larger buffer, in place, as FSDP2 gathers.
        whole = torch.zeros(n * 5)
        whole[me * 5 : me * 5 + 5] = me + 1.0
        dist.all_gather_single(whole, whole[me * 5 : me * 5 + 5])
        assert whole[::5].tolist() == [r + 1.0 for r in range(n)]
        with torch.inference_mode():
            number = torch.ones(4)
            dist.all_reduce(number)
            dist.all_reduce(number[::2])
            assert number.tolist() == [float(n * n), float(n)] * 2
        # As an input; of a tensor that is changed, c10d itself hands on a copy alone.
        negative = torch.complex(torch.zeros(3), torch.full((3,), float(me))).conj().imag
        assert negative.is_neg()
        out = torch.zeros(3 * n)
        dist.all_gather_single(out, negative)
        assert out[::3].tolist() == [-float(r) for r in range(n)]
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            eighth = torch.full((7,), float(me), dtype=torch.float32).to(dtype)
            dist.broadcast(eighth, n - 1)
            assert eighth.float().tolist() == [float(n - 1)] * 7
    return checks.wrong


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_odd_shapes(rank_pool: RankPool, ranks: int) -> None:
    rank_pool.run(odd_shapes, ranks)


def premultiplied() -> None:
    n, me = world_size(), rank()
    with process_group():
        for factor in (0.5, torch.tensor([0.25])):
            number = torch.full((1000,), float(me + 1))
            dist.all_reduce(number, dist._make_nccl_premul_sum(factor))
            assert number[999].item() == float(factor) * n * (n + 1) / 2


def test_premultiplied_sums(rank_pool: RankPool) -> None:
    rank_pool.run(premultiplied, 3)


# Where a collective's result is: the argument, and which of a list.
SPOILED = {
    "all_reduce": (0, None),
    "reduce": (0, None),
    "reduce_scatter_single": (0, None),
    "reduce_scatter": (0, None),
    "broadcast": (0, None),
    "all_gather_single": (0, None),
    "all_gather": (0, 0),
    "gather": (1, 0),
    "scatter": (0, None),
    "all_to_all": (0, -1),
    "all_to_all_single": (0, None),
}


def spoiled(name: str) -> list[str]:
    """What the checks above find where one element of that collective's result is wrong."""
    right = getattr(dist, name)
    argument, place = SPOILED[name]

    def wrong(*arguments: object, **keywords: object) -> None:
        right(*arguments, **{**keywords, "async_op": False})
        result = arguments[argument]
        if result is not None:
            result = result if place is None else result[place]
            if result.numel():
                result.view(-1)[-1] += 1

    checks = Checks()
    with process_group():
        setattr(dist, name, wrong)
        try:
            for check in (check_reductions, check_movements, check_exchanges):
                check(checks, "float32", "plain", False)
        finally:
            setattr(dist, name, right)
    return checks.wrong


@pytest.mark.parametrize("name", SPOILED)
def test_the_checks_notice_a_wrong_element(rank_pool: RankPool, name: str) -> None:
    found = [wrong for wrongs in rank_pool.run(spoiled, 2, (name,)) for wrong in wrongs]
    assert found and all(f": {name}".replace("_single", "") in wrong for wrong in found), found
