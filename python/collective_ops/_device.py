"""Tensors on a card: their calls run in a torch.distributed group of the card's own backend.

Before each such call the ranks compare what they are about to call, by a small all-gather of ours, so that
ranks that differ get an error in place of a wait without end. The first call makes the group; no address or
port is needed, since the ranks know each other already.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from . import _core, _device_group
from ._api import Work
from .errors import InvalidArgumentError, MismatchError, UnsupportedTypeError

BACKENDS = _device_group.BACKENDS

_CALLS = ("allreduce", "broadcast", "allgather", "reducescatter", "reduce", "gather", "scatter", "alltoall")
_OPS = [*_core.reduce_ops, "premul_sum"]
_TORCH_OPS = {"prod": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
_UNEVEN = -1  # in place of a count that may differ between ranks


def runner_of(tensor: Any) -> Callable[..., Any] | None:
    """None for memory of the host, and for devices of which nothing is known here: the core names those."""
    return _run if tensor.device.type in BACKENDS else None


def _run(comm: Any, function: Callable[..., Any], *arguments: Any, group: Any = None, **keywords: Any) -> Any:
    import torch

    with torch.no_grad():
        return _FUNCTIONS[function.__name__](comm, *arguments, **keywords)


def _allreduce(comm: Any, tensor: Any, op: Any, async_op: bool, timeout: Any) -> Any:
    scaled = _Scaled(op, tensor)
    group = _agreed(comm, "allreduce", [tensor], timeout, op)
    place = scaled.source(_packed(tensor), in_place=True)
    work = _distributed().all_reduce(place, scaled.torch_op, group, async_op=True)
    return _finished(work, lambda: scaled.result(comm, place, tensor), async_op, timeout)


def _broadcast(comm: Any, tensor: Any, root: int, async_op: bool, timeout: Any) -> Any:
    group = _agreed(comm, "broadcast", [tensor], timeout, root=root)
    place = _packed(tensor)
    work = _distributed().broadcast(place, _global(group, root), group, async_op=True)
    return _finished(work, lambda: _copied(place, tensor), async_op, timeout)


def _allgather(comm: Any, tensor: Any, out: Any, async_op: bool, timeout: Any) -> Any:
    ranks = comm.world_size
    if isinstance(tensor, list | tuple):
        tensor, out = out, tensor
    if isinstance(out, list | tuple):
        _require(len(out) == ranks, f"the list has {len(out)} arrays, but there are {ranks} ranks")
        sizes = [part.numel() for part in out]
        _require_sizes(out[comm.rank], "the array of this rank", tensor.numel())
        even = len(set(sizes)) == 1
        group = _agreed(comm, "allgather", [tensor, *out], timeout, even=even)
        if not even:
            _compare_lists(comm, sizes, timeout)
        places = [_packed(part) for part in out]
        work = _distributed().all_gather(places, _packed(tensor), group, async_op=True)
        return _finished(work, lambda: _all_copied(places, out), async_op, timeout)
    if out is None:
        out = tensor.new_empty((ranks, *tensor.shape))
    _require_sizes(out, "out", ranks * tensor.numel())
    group = _agreed(comm, "allgather", [tensor, out], timeout)
    place, gather_single = _packed(out), _function("all_gather_single", "all_gather_into_tensor")
    work = gather_single(place, _packed(tensor), group, async_op=True)
    return _finished(work, lambda: _copied(place, out), async_op, timeout)


def _reducescatter(
    comm: Any, tensor: Any, op: Any, out: Any, async_op: bool, timeout: Any, counts: Sequence[int] | None
) -> Any:
    ranks, scaled = comm.world_size, _Scaled(op, tensor)
    if out is None:
        _require(counts is None, "counts need out, an array for this rank's part")
        rows = tensor.shape[0] if tensor.dim() else -1
        _require(
            rows >= 0 and rows % ranks == 0, f"the first dimension of {tuple(tensor.shape)}: {ranks} parts"
        )
        out = tensor.new_empty((rows // ranks, *tensor.shape[1:]))
    if counts is None:
        _require_sizes(tensor, "tensor", ranks * out.numel())
    else:
        _require(len(counts) == ranks, f"counts={list(counts)}: a whole number for each of {ranks} ranks")
        _require_sizes(tensor, "tensor", sum(counts))
        _require_sizes(out, "out", counts[comm.rank])
    group = _agreed(comm, "reducescatter", [tensor, out], timeout, op)
    if counts is not None:
        _compare_lists(comm, list(counts), timeout)
    source, place = scaled.source(_packed(tensor)), _packed(out)
    if counts is None:
        scatter_single = _function("reduce_scatter_single", "reduce_scatter_tensor")
        work = scatter_single(place, source, scaled.torch_op, group, async_op=True)
    else:
        parts = list(source.split(list(counts)))
        work = _distributed().reduce_scatter(place, parts, scaled.torch_op, group, async_op=True)
    return _finished(work, lambda: scaled.result(comm, place, out), async_op, timeout)


def _reduce(comm: Any, tensor: Any, root: int, op: Any, async_op: bool, timeout: Any) -> Any:
    scaled = _Scaled(op, tensor)
    group = _agreed(comm, "reduce", [tensor], timeout, op, root)
    is_root = comm.rank == root
    # Some libraries leave partial sums in what the others give.
    place = scaled.source(_packed(tensor) if is_root else _packed(tensor).clone(), in_place=True)
    work = _distributed().reduce(place, _global(group, root), scaled.torch_op, group, async_op=True)
    done = (lambda: scaled.result(comm, place, tensor)) if is_root else lambda: tensor
    return _finished(work, done, async_op, timeout)


def _gather(
    comm: Any, tensor: Any, out: Any, root: int, async_op: bool, timeout: Any, uneven: bool = False
) -> Any:
    ranks, is_root = comm.world_size, comm.rank == root
    if not is_root:
        out = None
    elif out is None:
        _require(not uneven, f"uneven parts need a list of {ranks} arrays as out")
        out = tensor.new_empty((ranks, *tensor.shape))
    pieces = _pieces(out, "out", ranks, tensor, uneven) if is_root else []
    group = _agreed(comm, "gather", [tensor, *pieces], timeout, root=root, even=not uneven)
    _compare_pieces(comm, uneven, root, tensor, pieces, timeout)
    places = [_packed(piece) for piece in pieces]
    work = _distributed().gather(_packed(tensor), places or None, _global(group, root), group, async_op=True)

    def done() -> Any:
        _all_copied(places, pieces)
        return out

    return _finished(work, done, async_op, timeout)


def _scatter(
    comm: Any, out: Any, tensor: Any, root: int, async_op: bool, timeout: Any, uneven: bool = False
) -> Any:
    is_root = comm.rank == root
    _require(not is_root or tensor is not None, f"rank {root} is the root, so it gives the tensor")
    pieces = _pieces(tensor, "tensor", comm.world_size, out, uneven) if is_root else []
    group = _agreed(comm, "scatter", [out, *pieces], timeout, root=root, even=not uneven)
    _compare_pieces(comm, uneven, root, out, pieces, timeout)
    place = _packed(out)
    parts = [_packed(piece) for piece in pieces] or None
    work = _distributed().scatter(place, parts, _global(group, root), group, async_op=True)
    return _finished(work, lambda: _copied(place, out), async_op, timeout)


def _alltoall(
    comm: Any, out: Any, tensor: Any, out_splits: Any, in_splits: Any, async_op: bool, timeout: Any
) -> Any:
    ranks = comm.world_size
    lists = isinstance(tensor, list | tuple)
    if lists:
        _require(isinstance(out, list | tuple), "out and tensor are both lists of arrays, or both arrays")
        _require(len(out) == len(tensor) == ranks, f"each list has an array for each of {ranks} ranks")
        sent, received = [part.numel() for part in tensor], [part.numel() for part in out]
        group = _agreed(comm, "alltoall", [*tensor, *out], timeout, even=False)
    else:
        _require(tensor.dim() > 0, "an array without dimensions has no parts; give it one")
        sent = _elements(tensor, in_splits, ranks)
        if out is None:
            rows = tensor.shape[0] if out_splits is None else sum(out_splits)
            out = tensor.new_empty((rows, *tensor.shape[1:]))
        received = _elements(out, out_splits, ranks)
        group = _agreed(comm, "alltoall", [tensor, out], timeout, even=False)
    _compare_splits(comm, sent, received, timeout)
    if lists:
        places = [_packed(part) for part in out]
        work = _distributed().all_to_all(places, [_packed(part) for part in tensor], group, async_op=True)
        return _finished(work, lambda: _all_copied(places, out), async_op, timeout)
    place = _packed(out)
    work = _distributed().all_to_all_single(place, _packed(tensor), received, sent, group, async_op=True)
    return _finished(work, lambda: _copied(place, out), async_op, timeout)


_FUNCTIONS = {name: globals()[f"_{name}"] for name in _CALLS}


class _Scaled:
    """An op by means of what every backend has: factors are multiplied and averages divided here."""

    def __init__(self, op: Any, tensor: Any) -> None:
        self._name = _core.reduce_op_name(op)
        self._factor = 1.0
        if self._name == "premul_sum":
            self._factor = float(op.factor if hasattr(op, "factor") else op.__getstate__()[1])
            if not (tensor.is_floating_point() or tensor.is_complex()):
                raise UnsupportedTypeError(f"{type_name(tensor)} cannot be reduced with premul_sum")
        self.torch_op = getattr(_distributed().ReduceOp, _TORCH_OPS.get(self._name, "SUM"))

    def source(self, place: Any, in_place: bool = False) -> Any:
        if self._name != "premul_sum":
            return place
        return place.mul_(self._factor) if in_place else place * self._factor

    def result(self, comm: Any, place: Any, tensor: Any) -> Any:
        if self._name == "avg" and (place.is_floating_point() or place.is_complex()):
            place.div_(comm.world_size)
        elif self._name == "avg":
            place.div_(comm.world_size, rounding_mode="trunc")
        return _copied(place, tensor)


class _DeviceWork:
    """torch.distributed's work, with the two methods of the core's. `finish` divides, or copies into the
    caller's array: it runs once, however often is waited, and also where nobody waits."""

    def __init__(self, work: Any, finish: Callable[[], Any]) -> None:
        self._work, self._finish, self._waited, self._result = work, finish, False, None

    def wait(self, timeout: Any) -> None:
        """Without a timeout: ordered behind the call in the card's stream, as PyTorch does it."""
        seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
        if seconds:
            self._work.wait(timedelta(seconds=seconds))
        else:
            self._work.wait()
        if not self._waited:
            self._waited, self._result = True, self._finish()

    def result(self) -> Any:
        return self._result

    def done(self) -> bool:
        return self._work.is_completed()

    def __del__(self) -> None:
        if not self._waited:
            self._work.wait()
            self._finish()


def _finished(work: Any, finish: Callable[[], Any], async_op: bool, timeout: Any) -> Any:
    device_work = _DeviceWork(work, finish)
    pending = Work(device_work, device_work.result)
    return pending if async_op else pending.wait(timeout)


# --- What the ranks agree on -----------------------------------------------------------------------


def _agreed(
    comm: Any,
    name: str,
    tensors: Sequence[Any],
    timeout: Any,
    op: Any = "sum",
    root: int = 0,
    even: bool = True,
) -> Any:
    """The group of torch.distributed for this call, which all ranks make alike; else the error on all."""
    tensor = tensors[0]
    _require(0 <= root < comm.world_size, f"root {root} is not a rank of this group")
    for other in tensors[1:]:
        here, there = (f"{one.dtype} on {one.device}" for one in (tensor, other))
        _require(here == there, f"one tensor is of {here}, another of {there}")
    mine = [
        list(BACKENDS).index(tensor.device.type),
        _device_group.problem(tensor.device.type),
        _CALLS.index(name) | _OPS.index(_core.reduce_op_name(op)) << 8 | _type_number(tensor) << 16,
        tensor.numel() if even else _UNEVEN,
        root,
    ]
    rows = _everyones(comm, mine, timeout)
    if len({(row[0], *row[2:]) for row in rows}) > 1:
        raise MismatchError(_difference(comm, rows))
    without = [rank for rank, row in zip(comm.ranks, rows, strict=True) if row[1]]
    if without:
        raise InvalidArgumentError(f"{name}: {_device_group.explain(tensor.device.type, without)}")
    return _device_group.group_of(comm, tensor.device.type, timeout)


def _everyones(comm: Any, mine: Sequence[int], timeout: Any) -> list[tuple[int, ...]]:
    received = array("q", bytes(8 * len(mine) * comm.world_size))
    comm.agree(array("q", mine), received, timeout)
    return [tuple(received[first : first + len(mine)]) for first in range(0, len(received), len(mine))]


def _difference(comm: Any, rows: list[tuple[int, ...]]) -> str:
    callers: dict[str, list[int]] = {}
    for rank, (kind, _, call, count, root) in zip(comm.ranks, rows, strict=True):
        what = "elements" if count == _UNEVEN else f"{count} elements"
        text = f"{_CALLS[call & 0xFF]} of {what} of {_core.data_types[call >> 16]} on {list(BACKENDS)[kind]}"
        text += f", op {_OPS[call >> 8 & 0xFF]}, root {root}"
        callers.setdefault(text, []).append(rank)
    listed = "; ".join(f"ranks {ranks}: {text}" for text, ranks in callers.items())
    return (
        f"ranks made different calls with tensors of a device: {listed}. Every rank must make the "
        "same calls in the same order"
    )


def _compare_lists(comm: Any, counts: list[int], timeout: Any) -> None:
    rows = _everyones(comm, counts, timeout)
    odd = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if odd:
        first, other = comm.ranks[0], comm.ranks[odd[0]]
        raise MismatchError(
            f"counts: {list(rows[0])} on rank {first}, but {list(rows[odd[0]])} on rank {other}"
        )


def _compare_pieces(
    comm: Any, uneven: bool, root: int, part: Any, pieces: Sequence[Any], timeout: Any
) -> None:
    """That the root's list has each rank's own size."""
    if not uneven:
        return
    sizes = [piece.numel() for piece in pieces] or [0] * comm.world_size
    rows = _everyones(comm, [part.numel(), *sizes], timeout)
    for rank, row in enumerate(rows):
        if rows[root][1 + rank] != row[0]:
            raise MismatchError(
                f"rank {comm.ranks[rank]} has {row[0]} elements, but the list of rank {comm.ranks[root]} has "
                f"{rows[root][1 + rank]} for it"
            )


def _compare_splits(comm: Any, sent: list[int], received: list[int], timeout: Any) -> None:
    ranks = comm.world_size
    rows = _everyones(comm, [*sent, *received], timeout)
    for source in range(ranks):
        for destination in range(ranks):
            gives, expects = rows[source][destination], rows[destination][ranks + source]
            if gives != expects:
                raise MismatchError(
                    f"alltoall: rank {comm.ranks[source]} sends {gives} elements to rank "
                    f"{comm.ranks[destination]}, which expects {expects}"
                )


# --- Tensors ---------------------------------------------------------------------------------------


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed


def _function(name: str, older_name: str) -> Any:
    return getattr(_distributed(), name, None) or getattr(_distributed(), older_name)


def _global(group: Any, root: int) -> int:
    return _distributed().get_global_rank(group, root)


def type_name(tensor: Any) -> str:
    """As in data_types."""
    name = str(tensor.dtype).removeprefix("torch.").removesuffix("fn")
    if name not in _core.data_types:
        raise UnsupportedTypeError(
            f"elements of {tensor.dtype} are not supported; see collective_ops.data_types"
        )
    return name


def _type_number(tensor: Any) -> int:
    return _core.data_types.index(type_name(tensor))


def _packed(tensor: Any) -> Any:
    """One-dimensional, as the backends want it: the tensor's own memory where that is contiguous."""
    return tensor.detach().contiguous().view(-1)


def _copied(place: Any, tensor: Any) -> Any:
    if not tensor.is_contiguous():  # else `place` is its own memory
        tensor.detach().copy_(place.view(tensor.shape))
    return tensor


def _all_copied(places: Sequence[Any], tensors: Any) -> Any:
    for place, tensor in zip(places, tensors, strict=True):
        _copied(place, tensor)
    return tensors


def _pieces(whole: Any, name: str, ranks: int, part: Any, uneven: bool) -> list[Any]:
    """Of each rank, where the root gives an array or a list of such."""
    if isinstance(whole, list | tuple):
        _require(len(whole) == ranks, f"the list has {len(whole)} arrays, but there are {ranks} ranks")
        sizes = [piece.numel() for piece in whole]
        even = all(size == part.numel() for size in sizes)
        _require(uneven or even, f"the arrays of {name} have {sizes} elements; uneven=True on every rank")
        return list(whole)
    _require(not uneven, f"uneven parts need a list of {ranks} arrays")
    _require_sizes(whole, name, ranks * part.numel())
    _require(whole.is_contiguous(), f"{name} is not contiguous; give its .contiguous(), or a list")
    return list(whole.detach().view(-1).chunk(ranks)) if whole.numel() else [whole.view(-1)] * ranks


def _elements(tensor: Any, splits: Sequence[int] | None, ranks: int) -> list[int]:
    """Elements of each rank's part, whose sizes `splits` gives in rows."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits is None:
        _require(rows % ranks == 0, f"{rows} rows are no multiple of {ranks} ranks; give splits")
        splits = [rows // ranks] * ranks
    fits = len(splits) == ranks and sum(splits) == rows and min(splits) >= 0
    _require(fits, f"splits {list(splits)}: {ranks} numbers, which add up to the {rows} rows")
    width = tensor.numel() // rows if rows else 0
    return [width * count for count in splits]


def _require_sizes(tensor: Any, name: str, elements: int) -> None:
    _require(tensor.numel() == elements, f"{name} has {tensor.numel()} elements, but needs {elements}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise InvalidArgumentError(text)
