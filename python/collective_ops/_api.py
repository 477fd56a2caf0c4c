"""The functions of the package: thin calls of the C++ core with the arrays as they come.

One process is one rank of the group of all ranks, which this module holds; groups.py makes others.
"""

from __future__ import annotations

import atexit
import functools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import _core
from ._libraries import leave_devices, runner_of
from ._process_group import process_group
from ._waiting import WaitingLine
from .errors import InvalidArgumentError, NotInitializedError, UnsupportedTypeError

if TYPE_CHECKING:
    from .groups import Group

Array = Any  # a tensor, a numpy array, or anything with DLPack or the buffer protocol
Seconds = Any  # a number or a datetime.timedelta

data_types: tuple[str, ...] = tuple(_core.data_types)
reduce_ops: tuple[str, ...] = tuple(_core.reduce_ops)
kernel_target = _core.kernel_target

_group: _core.Communicator | None = None
_arguments: tuple[Any, ...] = ()
_device_id = 0
_forked = False
_groups: weakref.WeakSet[Group] = weakref.WeakSet()  # besides the one of all ranks


class Work:
    """An asynchronous call. Its arrays must not be touched until `wait` has returned."""

    __slots__ = ("_result", "_work")

    def __init__(self, work: _core.Work, result: Any) -> None:
        self._work, self._result = work, result

    def wait(self, timeout: Seconds | None = None) -> Any:
        """Returns what the blocking call would have returned, once the call is done; raises its error.

        After `timeout` seconds CollectiveTimeoutError; the call itself goes on, and can be waited for again.
        """
        self._work.wait(timeout)
        return self._result() if callable(self._result) else self._result

    def done(self) -> bool:
        """Whether the call has ended, well or not. Never blocks."""
        return self._work.done()


def init_hccl(
    rank: int | None = None,
    world_size: int | None = None,
    device_id: int | None = None,
    *,
    job_id: str | None = None,
    timeout: Seconds | None = None,
    connect_timeout: Seconds | None = None,
    root_info: str | None = None,
    store: Any = None,
    rank_table: str | os.PathLike[str] | None = None,
) -> None:
    """Joins the ranks that belong to one job, on this host or on several. Blocks until all are there.

    Args:
        rank, world_size: default RANK and WORLD_SIZE of the environment, else what Open MPI, MPICH, Slurm or
            msrun set; without them a world of one.
        device_id: this rank's card; default DEVICE_ID, then LOCAL_RANK, then the rank.
        job_id: tells jobs apart that were started by one parent process; default as
            docs/architecture.md says.
        timeout: seconds that a call may wait for other ranks, 0: for ever; default HCCL_EXEC_TIMEOUT.
        connect_timeout: seconds to wait here for all ranks; default HCCL_CONNECT_TIMEOUT.
        root_info, store, rank_table: how ranks on several hosts meet where launchers' variables do not say
            it (docs/hosts.md): what `create_root_info` returned on rank 0; an object with set, wait and get,
            such as PyTorch's stores; the path of a rank table.

    Where torch.distributed's process group is one of the backend collective_ops, it is joined: calls here and
    there (DDP's, say) are one sequence in the order in which they are made, on memory that both share.

    A second call with the same arguments does nothing. Raises RendezvousError where ranks are missing,
    disagree or exist twice, InvalidArgumentError for values that cannot be used.
    """
    global _group, _arguments, _device_id, _forked
    rank, world_size = _identity(_integer("rank", rank), _integer("world_size", world_size))
    device_id = _integer("device_id", device_id)
    if device_id is None:
        device_id = next((n for n in map(_number, ("DEVICE_ID", "LOCAL_RANK")) if n is not None), rank)
    if not (job_id is None or isinstance(job_id, str)):
        raise InvalidArgumentError(f"init_hccl: job_id={job_id!r} is a {type(job_id).__name__}; give a str")
    table = "" if rank_table is None else os.fspath(rank_table)
    arguments = (rank, world_size, device_id, job_id, timeout, connect_timeout, root_info, store, table)
    if _group is not None:
        if arguments == _arguments:
            return
        raise InvalidArgumentError(
            f"init_hccl: this process is already rank {_group.rank} of {_group.world_size}; call finalize() "
            "before it joins as another"
        )
    own_way = job_id is not None or root_info or store is not None or table
    if not own_way and (shared := process_group(rank, world_size, timeout)) is not None:
        _group, _arguments, _device_id, _forked = shared, arguments, device_id, False
        return
    line = WaitingLine(rank, world_size, job_id)
    _group = _core.Communicator(
        rank,
        world_size,
        job_id or "",
        connect_timeout,
        timeout,
        line,
        root_info=root_info or "",
        store=store,
        rank_table=table,
    )
    _arguments, _device_id, _forked = arguments, device_id, False


def create_root_info() -> str:
    """For rank 0 of ranks on several hosts: the text that all of them give to `init_hccl`, this one too.

    It says where rank 0 listens and holds the job's secret: hand it over where nobody else can read it.
    Each serves one group, of which the process that made it is rank 0.
    """
    return _core.create_root_info()


def finalize() -> None:
    """Leaves all groups, after what was started is done. Optional: leaving the process does it too."""
    global _group
    world, _group = _group, None
    try:
        leave_devices()
        for group in list(_groups):
            group.close()
    finally:
        if world is not None:
            world.close()


def is_initialized() -> bool:
    return _group is not None


def rank() -> int:
    """This process's rank, from 0."""
    return communicator("rank").rank


def world_size() -> int:
    """The number of ranks."""
    return communicator("world_size").world_size


def counters(group: Group | None = None) -> dict[str, int]:
    """What this rank has done in the group, by default that of all ranks, since it joined: calls, bytes
    (payload); by the path taken inline_calls, staged_calls, direct_calls (where all buffers are shared) and
    read_calls; copied_bytes (into and out of staging memory). Messages are no calls: sends, receives,
    sent_bytes, received_bytes."""
    return communicator("counters", group).counters()


def allreduce(
    tensor: Array,
    op: str = "sum",
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> Any:
    """Replaces `tensor`, on every rank, by the reduction of all ranks' tensors; returns it.

    Args:
        tensor: of equal element type and count on all ranks; any strides, 0-dim and empty too.
        op: sum, avg (or mean), prod, min, max, band, bor, bxor, premul_sum(factor); or what
            torch.distributed.ReduceOp calls so.
        async_op: return a Work at once; `tensor` holds the result after its wait().
        timeout: seconds to wait for the other ranks; 0: for ever; default: that of init_hccl or new_group.
        group: default: all ranks. Here as in all calls "all ranks" are those of the group, and a rank is its
            place in the group's list.

    Sums are rank 0 + 1 + ... in float32 or wider, rounded once: the same bits on all ranks.
    """
    comm = _group if group is None and _group is not None else communicator("allreduce", group)
    if (run := runner_of(tensor)) is not None:
        return counted(run)(comm, allreduce, tensor, op, async_op, timeout, group=group)
    work = comm.all_reduce(tensor, op, timeout, async_op)
    return Work(work, tensor) if async_op else tensor


Function = TypeVar("Function", bound=Callable[..., Any])


def counted(function: Function) -> Function:
    """What a collective raises before it has called the core is a call all the same: peers that made it learn
    of it at once, and ranks that fail alike stay in step. (The binding does so for its own errors.)

    Of a function with the keyword `group`, or of a method of an object that has one."""

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        before = _core.calls_begun()
        try:
            return function(*arguments, **keywords)
        except Exception:
            if _core.calls_begun() == before:
                owner = arguments[0] if arguments else None
                group = keywords["group"] if "group" in keywords else getattr(owner, "group", None)
                comm = _group if group is None else getattr(group, "_communicator", None)
                if comm is not None:
                    comm.refuse_call()
            raise

    return checked


@counted
def broadcast(
    tensor: Array,
    root: int | None = None,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    src: int | None = None,
    group: Group | None = None,
) -> Any:
    """Copies rank `root`'s tensor into the other ranks' (of equal type and count); returns `tensor`.

    `root` is a rank of the group, default 0; `src`, as PyTorch names it, one of the world, which is the same
    where no group is given. The others as in `allreduce`.
    """
    comm = communicator("broadcast", group)
    if src is not None:
        src = _rank_of("broadcast", src, group)
    if root is None:
        root = 0 if src is None else src
    elif src is not None and src != root:
        raise InvalidArgumentError(f"broadcast: root={root} and src={src} name the same thing; give one")
    if (run := runner_of(tensor)) is not None:
        return run(comm, broadcast, tensor, root, async_op, timeout, group=group)
    work = comm.broadcast(tensor, root, timeout, async_op)
    return Work(work, tensor) if async_op else tensor


@counted
def allgather(
    tensor: Array | Sequence[Array],
    out: Array | Sequence[Array] | None = None,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> Any:
    """Collects all ranks' tensors, rank by rank, on every rank.

    Args:
        tensor: of equal type and count on all ranks.
        out: where to: an array of world_size times as many elements, or a list of world_size arrays.
            Default: a new one of shape (world_size, *tensor.shape), of the kind that `tensor` is.
            Where the ranks' counts differ, a list of arrays that are each as long as that rank's tensor.

    PyTorch's order, `allgather(list_of_arrays, tensor)`, is understood too. Returns `out`.
    """
    comm = communicator("allgather", group)
    if (run := runner_of(tensor)) is not None:
        return run(comm, allgather, tensor, out, async_op, timeout, group=group)
    if isinstance(tensor, list | tuple):
        tensor, out = out, tensor
    if not isinstance(out, list | tuple):
        if out is None:
            out = _new_like(tensor, (comm.world_size, *_shape(tensor)))
        work = comm.all_gather(tensor, out, timeout, async_op)
        return Work(work, out) if async_op else out
    if len(out) != comm.world_size:
        raise InvalidArgumentError(
            f"allgather: the list has {len(out)} arrays, but there are {comm.world_size} ranks"
        )
    dtype, count, _ = _core.describe_array(tensor, False)
    parts = [_core.describe_array(part)[:2] for part in out]
    counts = [size for _, size in parts]
    if counts[comm.rank] != count or any(kind != dtype for kind, _ in parts):
        raise InvalidArgumentError(
            f"allgather: each array of the list has {count} elements of {dtype}, like this rank's tensor; "
            "where the ranks' tensors differ in size, the one of each rank has that rank's size"
        )
    gathered = _core.SharedArray([sum(counts)], dtype)

    def spread() -> Any:
        first = 0
        for part in out:
            first += gathered.copy_out(first, part)
        return out

    if len(set(counts)) == 1:
        work = comm.all_gather(tensor, gathered, timeout, async_op)
    else:
        work = comm.exchange("all_gather_v", tensor, gathered, "sum", 0, [], counts, timeout, async_op)
    return Work(work, spread) if async_op else spread()


@counted
def reducescatter(
    tensor: Array,
    op: str = "sum",
    out: Array | None = None,
    async_op: bool = False,
    timeout: Seconds | None = None,
    *,
    counts: Sequence[int] | None = None,
    group: Group | None = None,
) -> Any:
    """Reduces all ranks' tensors, and gives rank r the r-th part of the result.

    Args:
        tensor: of equal type and count on all ranks; the count is a multiple of world_size.
        out: this rank's part. Default: a new one of the kind that `tensor` is, of shape
            (tensor.shape[0] / world_size, *tensor.shape[1:]).
        counts: elements of each rank's part, equal on all ranks; needs `out`. Default: equal parts.

    Returns `out`.
    """
    comm = communicator("reducescatter", group)
    if (run := runner_of(tensor)) is not None:
        return run(comm, reducescatter, tensor, op, out, async_op, timeout, counts=counts, group=group)
    if counts is not None:
        if out is None:
            raise InvalidArgumentError("reducescatter: counts need out, an array for this rank's part")
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise InvalidArgumentError(f"reducescatter: counts={counts!r}: a whole number for each rank")
        work = comm.exchange("reduce_scatter_v", tensor, out, op, 0, list(counts), [], timeout, async_op)
        return Work(work, out) if async_op else out
    if out is None:
        shape = _shape(tensor)
        if not shape or shape[0] % comm.world_size != 0:
            raise InvalidArgumentError(
                f"reducescatter: the first dimension of shape {shape} is not a multiple of {comm.world_size} "
                "ranks; pad it, or give out="
            )
        out = _new_like(tensor, (shape[0] // comm.world_size, *shape[1:]))
    work = comm.reduce_scatter(tensor, out, op, timeout, async_op)
    return Work(work, out) if async_op else out


def barrier(
    async_op: bool = False, timeout: Seconds | None = None, *, group: Group | None = None
) -> Work | None:
    """Returns when all ranks have called it."""
    work = communicator("barrier", group).barrier(timeout, async_op)
    return Work(work, None) if async_op else None


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """An array in memory that the ranks share: above a few KiB collectives on it copy nothing. Contents are
    unspecified.

    Args:
        dtype: a name of `data_types`, a numpy or a torch type.

    Returns a torch.Tensor where PyTorch has been imported, else a SharedArray: numpy.asarray(a),
    numpy.from_dlpack(a) and memoryview(a) see its memory. It is freed with the last reference.
    """
    try:
        extents = list(map(operator.index, shape if hasattr(shape, "__iter__") else [shape]))
    except TypeError:
        raise InvalidArgumentError(f"empty: shape={shape!r}: a whole number or several") from None
    array = _core.SharedArray(extents, _type_name(dtype))
    torch = sys.modules.get("torch")
    return torch.from_dlpack(array) if torch is not None else array


def device() -> Any:
    """This rank's card as a torch.device: npu, then cuda, where there is one; else the CPU. Without PyTorch
    imported the string "cpu". Tensors on a card travel by the card's own library."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "cpu"
    number = (
        _device_id
        if _group is not None
        else next((n for n in map(_number, ("DEVICE_ID", "LOCAL_RANK")) if n is not None), 0)
    )
    for kind in ("npu", "cuda"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return torch.device(kind, number)
    return torch.device("cpu")


def communicator(caller: str, group: Group | None = None) -> _core.Communicator:
    """Of the group, or of all ranks; NotInitializedError, in the name of `caller`, where there is none."""
    if group is not None:
        check_group(caller, group)
        comm = group._communicator
        if comm is None:
            raise NotInitializedError(f"{caller}: {group!r} was closed; make another one by new_group()")
        return comm
    if _group is not None:
        return _group
    if _forked:
        raise NotInitializedError(
            f"{caller}: this process is a fork of a rank, and a group does not survive a fork. Start workers "
            "with spawn, or call init_hccl here with a rank and a job_id of their own"
        )
    raise NotInitializedError(f"{caller}: there is no group yet; call init_hccl() first, in every process")


def check_group(caller: str, group: Any) -> None:
    """InvalidArgumentError where that is neither None nor a group."""
    if group is not None and not hasattr(group, "_communicator"):
        raise InvalidArgumentError(
            f"{caller}: group={group!r} is a {type(group).__name__}; give what new_group() has returned"
        )


def _rank_of(caller: str, world_rank: int, group: Group | None) -> int:
    """The rank in the group."""
    if group is None:
        return world_rank
    if world_rank not in group.ranks:
        raise InvalidArgumentError(
            f"{caller}: src={world_rank} is none of the ranks {group.ranks} of the world that {group!r} has; "
            f"root= takes a rank of the group, 0 to {group.size - 1}"
        )
    return group.ranks.index(world_rank)


def _identity(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size, from the environment where not given."""
    if rank is None and world_size is None and (launched := _core.launched()) is not None:
        return launched[1], launched[2]
    rank = _number("RANK") if rank is None else rank
    world_size = _number("WORLD_SIZE") if world_size is None else world_size
    if rank is None and (world_size is None or world_size == 1):
        return 0, 1
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        raise InvalidArgumentError(
            f"init_hccl: there is no {missing}, neither as an argument nor as {missing.upper()} in the "
            "environment; collective-ops run and torchrun set it. Give both, or neither to be the only rank"
        )
    return rank, world_size


def _integer(name: str, value: Any) -> int | None:
    """`value` as an int; text of digits is one, as os.environ gives it."""
    if value is None:
        return None
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"init_hccl: {name}={value!r} is no whole number") from None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()  # environment.py has seen to it that it is a number
    return int(text) if text else None


def _shape(array: Array) -> tuple[int, ...]:
    if hasattr(array, "shape"):
        return tuple(array.shape)
    return memoryview(array).shape if array is not None else _core.describe_array(array)


def _new_like(array: Array, shape: tuple[int, ...]) -> Array:
    """Private memory of the kind that `array` is; a SharedArray where that kind is not known."""
    kind = type(array).__module__.partition(".")[0]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.empty(shape, dtype=array.dtype)
    if numpy is not None and kind == "numpy":
        return numpy.empty(shape, dtype=array.dtype)
    return _core.SharedArray(list(shape), _core.describe_array(array, False)[0])


_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "float8_e4m3fn": "float8_e4m3"}


def _type_name(dtype: Any) -> str:
    name = (
        dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    )
    name = str(name or dtype).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in data_types:
        raise UnsupportedTypeError(f"empty: dtype {dtype!r} is not one of {', '.join(data_types)}")
    return name


def _after_fork() -> None:
    global _group, _forked, _inherited
    _forked, _inherited, _group = _group is not None or _forked, _group, None


_inherited: _core.Communicator | None = None  # of the parent: kept, as it is the parent's to leave
os.register_at_fork(after_in_child=_after_fork)
atexit.register(finalize)
