"""Collectives with a root, and all-to-all: thin calls of the core, with lists of arrays and uneven parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from ._api import Array, Seconds, Work, _new_like, _shape, communicator, counted
from ._libraries import runner_of
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .groups import Group


@counted
def reduce(
    tensor: Array,
    root: int = 0,
    op: str = "sum",
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> Any:
    """Replaces `tensor` on rank `root` by the reduction of all ranks' tensors; the others keep theirs.

    Arguments as in `allreduce`, whose result on `root` this is. Returns `tensor`.
    """
    comm = communicator("reduce", group)
    if (run := runner_of(tensor)) is not None:
        return run(comm, reduce, tensor, root, op, async_op, timeout, group=group)
    out = tensor if comm.rank == root else None
    work = comm.exchange("reduce", tensor, out, op, root, [], [], timeout, async_op)
    return Work(work, tensor) if async_op else tensor


@counted
def gather(
    tensor: Array,
    out: Array | Sequence[Array] | None = None,
    root: int = 0,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    uneven: bool = False,
    group: Group | None = None,
) -> Any:
    """Collects all ranks' tensors, rank by rank, on rank `root`.

    Args:
        tensor: of equal type on all ranks, and of equal count unless `uneven`.
        out: looked at on the root alone: an array of world_size times as many elements, or a list of
            world_size arrays. Default: a new one of shape (world_size, *tensor.shape).
        uneven: on all ranks alike: the ranks' counts differ. The root's `out` is then a list, and each of its
            arrays as long as that rank's tensor; else all get MismatchError.

    Returns `out` on the root, None on the others.
    """
    comm = communicator("gather", group)
    if (run := runner_of(tensor)) is not None:
        return run(comm, gather, tensor, out, root, async_op, timeout, uneven=uneven, group=group)
    if comm.rank != root:
        work = comm.exchange(_kind("gather", uneven), tensor, None, "sum", root, [], [], timeout, async_op)
        return Work(work, None) if async_op else None
    if isinstance(out, list | tuple):
        parts = _Parts("gather", "out", out, comm.world_size, writable=True, even=not uneven)
        counts = parts.counts if uneven else []
        return _finish(
            comm.exchange(
                _kind("gather", uneven), tensor, parts.buffer, "sum", root, [], counts, timeout, async_op
            ),
            lambda: parts.spread(out),
            async_op,
        )
    if uneven:
        raise InvalidArgumentError(f"gather: uneven parts need a list of {comm.world_size} arrays as out")
    if out is None:
        out = _new_like(tensor, (comm.world_size, *_shape(tensor)))
    work = comm.exchange("gather", tensor, out, "sum", root, [], [], timeout, async_op)
    return Work(work, out) if async_op else out


@counted
def scatter(
    out: Array,
    tensor: Array | Sequence[Array] | None = None,
    root: int = 0,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    uneven: bool = False,
    group: Group | None = None,
) -> Any:
    """Gives each rank its part of what rank `root` has; returns `out`.

    Args:
        out: where this rank's part goes; of equal type on all ranks, and of equal count unless `uneven`.
        tensor: looked at on the root alone: an array of world_size times as many elements, or a list of
            world_size arrays.
        uneven: on all ranks alike: the parts differ in count, and the root gives a list.
    """
    comm = communicator("scatter", group)
    if (run := runner_of(out)) is not None:
        return run(comm, scatter, out, tensor, root, async_op, timeout, uneven=uneven, group=group)
    kind, counts = _kind("scatter", uneven), []
    if comm.rank != root:
        tensor = None
    elif isinstance(tensor, list | tuple):
        parts = _Parts("scatter", "tensor", tensor, comm.world_size, even=not uneven)
        tensor, counts = parts.filled(), parts.counts if uneven else []
    elif tensor is None or uneven:
        what = f"a list of {comm.world_size} arrays" if uneven else "the tensor whose parts are given out"
        raise InvalidArgumentError(f"scatter: rank {root} is the root, so it gives {what}")
    work = comm.exchange(kind, tensor, out, "sum", root, counts, [], timeout, async_op)
    return Work(work, out) if async_op else out


@counted
def alltoall(
    out: Array | Sequence[Array] | None,
    tensor: Array | Sequence[Array],
    out_splits: Sequence[int] | None = None,
    in_splits: Sequence[int] | None = None,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> Any:
    """Sends part r of `tensor` to rank r, and puts what came from rank r into part r of `out`; returns `out`.

    Args:
        tensor: an array, in parts along its first dimension, or a list of world_size arrays.
        out: the same; never the memory of `tensor`. None: a new array.
        in_splits, out_splits: rows of each part of `tensor` and of `out`, zero included; default: equal
            parts. Give them on all ranks or on none. What a rank sends to another is what that one expects
            from it; else all ranks get MismatchError, which names both and their bytes.
    """
    comm = communicator("alltoall", group)
    if (run := runner_of(tensor)) is not None:
        return run(comm, alltoall, out, tensor, out_splits, in_splits, async_op, timeout, group=group)
    lists = isinstance(out, list | tuple), isinstance(tensor, list | tuple)
    if all(lists):
        if out_splits is not None or in_splits is not None:
            raise InvalidArgumentError("alltoall: the arrays of a list are the parts; give no splits with it")
        into = _Parts("alltoall", "out", out, comm.world_size, writable=True)
        parts = _Parts("alltoall", "tensor", tensor, comm.world_size)
        work = comm.exchange(
            "all_to_all_v",
            parts.filled(),
            into.buffer,
            "sum",
            0,
            parts.counts,
            into.counts,
            timeout,
            async_op,
        )
        return _finish(work, lambda: into.spread(out), async_op)
    if any(lists):
        raise InvalidArgumentError("alltoall: out and tensor are both lists of arrays, or both arrays")
    even = out_splits is None and in_splits is None
    sent = _elements("in_splits", in_splits, tensor, comm.world_size)
    if out is None:
        rows = _shape(tensor)[0] if out_splits is None else sum(_whole_numbers("out_splits", out_splits))
        out = _new_like(tensor, (rows, *_shape(tensor)[1:]))
    received = _elements("out_splits", out_splits, out, comm.world_size)
    if even:
        work = comm.exchange("all_to_all", tensor, out, "sum", 0, [], [], timeout, async_op)
    else:
        work = comm.exchange("all_to_all_v", tensor, out, "sum", 0, sent, received, timeout, async_op)
    return Work(work, out) if async_op else out


class _Parts:
    """The arrays of a list, one per rank, which travel one behind the other through memory of their own."""

    def __init__(
        self,
        caller: str,
        name: str,
        arrays: Sequence[Array],
        world_size: int,
        *,
        writable: bool = False,
        even: bool = False,
    ) -> None:
        if len(arrays) != world_size:
            raise InvalidArgumentError(
                f"{caller}: the list has {len(arrays)} arrays, but there are {world_size} ranks"
            )
        described = [_core.describe_array(array, writable)[:2] for array in arrays]
        dtypes = sorted({dtype for dtype, _ in described})
        if len(dtypes) > 1:
            raise InvalidArgumentError(f"{caller}: the arrays of {name} are of {' and '.join(dtypes)}")
        self.arrays = list(arrays)
        self.counts = [count for _, count in described]
        if even and len(set(self.counts)) > 1:
            raise InvalidArgumentError(
                f"{caller}: the arrays of {name} have {self.counts} elements; where they differ, every rank "
                "says uneven=True"
            )
        self.buffer = _core.SharedArray([sum(self.counts)], dtypes[0])

    def filled(self) -> Any:
        first = 0
        for array in self.arrays:
            first += self.buffer.copy_in(first, array)
        return self.buffer

    def spread(self, result: Any) -> Any:
        first = 0
        for array in self.arrays:
            first += self.buffer.copy_out(first, array)
        return result


def _kind(name: str, uneven: bool) -> str:
    return f"{name}_v" if uneven else name


def _finish(work: Any, result: Callable[[], Any], async_op: bool) -> Any:
    return Work(work, result) if async_op else result()


def _whole_numbers(name: str, values: Sequence[int]) -> list[int]:
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        numbers = [-1]
    if min(numbers, default=0) < 0:
        raise InvalidArgumentError(
            f"alltoall: {name}={values!r}: give a whole number for each rank, 0 or more"
        )
    return numbers


def _elements(name: str, splits: Sequence[int] | None, array: Array, world_size: int) -> list[int]:
    """Elements of each part of `array`, whose first dimension is split into `splits` rows."""
    shape = _shape(array)
    if not shape:
        raise InvalidArgumentError("alltoall: an array without dimensions has no parts; give it one")
    if splits is None:
        if shape[0] % world_size != 0:
            raise InvalidArgumentError(
                f"alltoall: the first dimension of shape {tuple(shape)} is not a multiple of {world_size} "
                f"ranks; give {name}, in rows"
            )
        splits = [shape[0] // world_size] * world_size
    rows = _whole_numbers(name, splits)
    if len(rows) != world_size or sum(rows) != shape[0]:
        raise InvalidArgumentError(
            f"alltoall: {name}={rows}: give {world_size} numbers, which add up to the "
            f"{shape[0]} rows of shape {tuple(shape)}"
        )
    row = 1
    for extent in shape[1:]:
        row *= extent
    return [count * row for count in rows]
