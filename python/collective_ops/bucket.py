"""GradientBucket: many gradients, few collectives."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _api, _bucket_memory, _core
from ._bucket_memory import described, memory_of, number_of, size_of, start_allreduce
from .errors import InvalidArgumentError, MismatchError
from .placement import Placement, warn_if_ddp_reduces

if TYPE_CHECKING:
    from .groups import Group

# A bucket's first memory; it doubles up to the bucket's size, so that a small model takes little.
_FIRST_BYTES = 1 << 20
_NO_GRADIENT = (len(_core.data_types), 0)  # in place of type and count
_NOTHING = -1  # behind the end of a list


@dataclass
class BucketStats:
    """What a bucket has done so far, on this rank."""

    rounds: int = 0  # allreduce() that had something to reduce
    gradients: int = 0
    calls: int = 0  # collectives
    bytes: int = 0  # reduced
    copied_bytes: int = 0  # by the bucket, in and out; the core's are in counters()
    placed_anew: int = 0  # gradients that had left their place in shared memory, and were copied back
    inline_calls: int = 0  # the path that calls took, as in counters()
    staged_calls: int = 0
    direct_calls: int = 0
    read_calls: int = 0


@dataclass
class _Batch:
    """Gradients that travel together, copied into `memory`; or one alone, where it lies (no memory)."""

    memory: Any  # None, or SharedArray or CardMemory
    used: int = 0
    entries: list[tuple[int, Any]] = field(default_factory=list)  # first element, gradient
    work: _core.Work | None = None


class GradientBucket:
    """Collects gradients and reduces them with one call per `bucket_size_mb`.

        bucket = GradientBucket(bucket_size_mb=25, reduce_op="sum")
        for param in model.parameters():
            bucket.add(param.grad)         # None too: it keeps the ranks in step
        bucket.allreduce()                 # now the reduced values stand in the .grad tensors
        bucket.clear()

    add() copies into shared memory, which is kept from step to step. A bucket that is full is sent while the
    next one fills. Types may be mixed (a bucket per type); a gradient larger than a bucket is sent alone.
    All ranks must add tensors of the same types and sizes in the same order, and None in the same places:
    MismatchError otherwise.

        bucket = GradientBucket(parameters=model.parameters())
        bucket.zero_grad(); loss.backward(); bucket.allreduce()

    With `parameters` their gradients live in shared memory from the start (each `.grad` is a view), so
    allreduce() copies nothing, and neither does `allreduce(param.grad)`. Clear gradients with
    `bucket.zero_grad()`: one that was set to None and made anew by backward is copied back into its place.
    A gradient that is None at allreduce() counts as zeros, and is there afterwards: ranks stay equal.

    Args:
        bucket_size_mb: in 2**20 bytes.
        reduce_op: as in `allreduce`.
        parameters: torch parameters; those that require no gradient are left out.
        group: whose ranks reduce; default: all ranks.
    """

    def __init__(
        self,
        bucket_size_mb: float = 25,
        reduce_op: str = "sum",
        parameters: Iterable[Any] | None = None,
        *,
        group: Group | None = None,
    ) -> None:
        _api.check_group("GradientBucket", group)
        self.group = group
        self._bucket_bytes = _bytes_of(bucket_size_mb)
        _core.reduce_op_name(reduce_op)  # refuses what is none
        self._op = reduce_op
        self._placement = Placement(parameters, self._bucket_bytes) if parameters is not None else None
        self._stats = BucketStats()
        self._open: dict[str, _Batch] = {}
        self._sent: list[_Batch] = []
        self._free: dict[str, list[Any]] = {}
        self._noted: list[tuple[int, int]] = []  # type and count of what was added in this round
        self._placement_agreed = self._placement is None
        self._before: dict[str, int] | None = None  # counters at the begin of a round

    @property
    def stats(self) -> BucketStats:
        return self._stats

    def add(self, tensor: Any) -> None:
        """Adds a gradient to this round. It must not be changed until allreduce() has returned.

        None is the gradient of a parameter that took no part: it stays None where it is so on all ranks, and
        allreduce() raises MismatchError where it is so on some. (With `parameters` it counts as zeros.)
        Sends a bucket that is full, so an error of that call may come from here.
        """
        if self._placement is not None and (tensor is None or self._placement.take(tensor, self._stats)):
            return
        self._begin_round()
        if tensor is None:
            self._noted.append(_NO_GRADIENT)
            return
        dtype, count = described(tensor)
        self._noted.append((number_of(dtype), count))
        self._stats.gradients += 1
        capacity = max(1, self._bucket_bytes // size_of(dtype))
        if count > capacity:
            self._send(_Batch(None, count, [(0, tensor)]), dtype)
            return
        batch = self._open.get(dtype)
        if batch is not None and batch.used + count > capacity:
            self._send(self._open.pop(dtype), dtype)
            batch = None
        if batch is None:
            batch = self._open[dtype] = _Batch(
                self._memory(dtype, min(capacity, _FIRST_BYTES // size_of(dtype)))
            )
        self._make_room(batch, dtype, batch.used + count, capacity)
        batch.memory.copy_in(batch.used, tensor)
        batch.entries.append((batch.used, tensor))
        batch.used += count
        self._stats.copied_bytes += count * size_of(dtype)

    @_api.counted
    def allreduce(self) -> None:
        """Reduces what was added since the last time, and all placed gradients. A collective call."""
        comm = _api.communicator("GradientBucket.allreduce", self.group)
        self._begin_round()
        try:
            if self._placement is not None:
                self._reduce_placed(comm)
            for batch in self._sent:
                batch.work.wait()
            # Before any gradient gets a sum, and before calls of which the core would see sizes alone.
            self._check_layout(comm)
            for dtype in list(self._open):
                self._send(self._open.pop(dtype), dtype)
            for batch in self._sent:
                batch.work.wait()
            for batch in self._sent:
                self._copy_out(batch)
            self._warn_once()
        finally:
            self._drop()
        self._end_round(comm)

    def clear(self) -> None:
        """Forgets what was added and not reduced. Reduced values stay in the gradients."""
        try:
            for batch in self._sent:
                batch.work.wait()  # its memory is in use until then
        finally:
            self._drop()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Sets the gradients of `parameters` to zero where they lie, and puts back those that were None."""
        if set_to_none:
            raise InvalidArgumentError(
                "GradientBucket.zero_grad(set_to_none=True): placed gradients keep their place; leave it out"
            )
        if self._placement is None:
            raise InvalidArgumentError(
                "GradientBucket.zero_grad works on placed gradients: give GradientBucket(parameters=...), or "
                "call optimizer.zero_grad()"
            )
        self._placement.zero()

    def _reduce_placed(self, comm: _core.Communicator) -> None:
        placement = self._placement
        placement.collect(self._stats)
        self._stats.gradients += len(placement.slots)
        if not self._placement_agreed:
            self._noted += [(number_of(dtype), count) for dtype, count in placement.layout]
        for memory in placement.memories:
            start_allreduce(comm, memory, self._op).wait()
            self._count(memory.nbytes)

    def _send(self, batch: _Batch, dtype: str) -> None:
        what = batch.memory.slice(0, batch.used) if batch.memory is not None else batch.entries[0][1]
        comm = _api.communicator("GradientBucket.add", self.group)
        # Asynchronous also where ranks outnumber cores: no slower there (measured with 2, 4 and 8 ranks on
        # two cores), as a rank that is late does not hold up the copies of the others.
        batch.work = start_allreduce(comm, what, self._op)
        self._sent.append(batch)
        self._count(batch.used * size_of(dtype))

    def _copy_out(self, batch: _Batch) -> None:
        if batch.memory is None:
            return
        for first, gradient in batch.entries:
            batch.memory.copy_out(first, gradient)
        self._stats.copied_bytes += batch.used * size_of(_bucket_memory.kind_of(batch.memory))

    def _drop(self) -> None:
        for batch in [*self._sent, *self._open.values()]:
            if batch.memory is not None:
                self._free.setdefault(_bucket_memory.kind_of(batch.memory), []).append(batch.memory)
        self._sent, self._open, self._noted = [], {}, []

    def _memory(self, dtype: str, count: int) -> Any:
        free = self._free.get(dtype)
        return free.pop() if free else memory_of(dtype, max(1, count))

    def _make_room(self, batch: _Batch, dtype: str, needed: int, capacity: int) -> None:
        if batch.memory.size >= needed:
            return
        larger = memory_of(dtype, min(capacity, max(needed, 2 * batch.memory.size)))
        larger.copy_in(0, batch.memory.slice(0, batch.used))
        batch.memory = larger

    def _check_layout(self, comm: _core.Communicator) -> None:
        """That all ranks have added the same, in the same order: the core sees sizes of buckets alone, and
        sums of other tensors than meant would be silently wrong. Placed gradients are asked for once."""
        if not self._noted:
            return
        # Hashes of integers are the same in every process.
        mine = array("q", [hash(tuple(self._noted)), len(self._noted)])
        everyones = array("q", bytes(16 * comm.world_size))
        comm.all_gather(mine, everyones, None, False)
        ranks = range(comm.world_size)
        odd = [rank for rank in ranks if everyones[2 * rank : 2 * rank + 2] != everyones[:2]]
        if odd:
            lists = self._everyones_lists(comm, max(everyones[1::2]))
            raise MismatchError(
                f"GradientBucket: ranks {[comm.ranks[rank] for rank in odd]} have added other gradients than "
                f"rank {comm.ranks[0]}, or in another order; {_first_difference(lists, odd, comm.ranks)}. On "
                "all ranks: bucket.add(param.grad) for all parameters, also where it is None. Where ranks "
                "use different ones: GradientBucket(parameters=...)"
            )
        self._placement_agreed = True

    def _everyones_lists(self, comm: _core.Communicator, longest: int) -> list[list[tuple[int, int]]]:
        """What each rank has added, for the error."""
        mine = array("q", [number for entry in self._noted for number in entry])
        mine.extend([_NOTHING] * (2 * longest - len(mine)))
        everyones = array("q", bytes(8 * len(mine) * comm.world_size))
        comm.all_gather(mine, everyones, None, False)
        pairs = list(zip(everyones[::2], everyones[1::2], strict=True))
        return [pairs[first : first + longest] for first in range(0, len(pairs), longest)]

    def _warn_once(self) -> None:
        if self._stats.rounds == 0:
            warn_if_ddp_reduces([gradient for batch in self._sent for _, gradient in batch.entries])

    def _begin_round(self) -> None:
        if self._before is None and (self.group is not None or _api.is_initialized()):
            self._before = _api.counters(self.group)

    def _end_round(self, comm: _core.Communicator) -> None:
        before, after = self._before or {}, comm.counters()
        for path in ("inline_calls", "staged_calls", "direct_calls", "read_calls"):
            setattr(self._stats, path, getattr(self._stats, path) + after[path] - before.get(path, 0))
        self._stats.rounds += 1
        self._before = None

    def _count(self, size: int) -> None:
        self._stats.calls += 1
        self._stats.bytes += size


def _bytes_of(bucket_size_mb: Any) -> int:
    try:
        if bucket_size_mb > 0:
            return max(64, int(bucket_size_mb * 2**20))
    except (TypeError, OverflowError):
        pass
    raise InvalidArgumentError(f"GradientBucket: bucket_size_mb={bucket_size_mb!r}: a size above 0")


def _first_difference(lists: list[list[tuple[int, int]]], odd: list[int], names: list[int]) -> str:
    for index, entry in enumerate(lists[0]):
        for rank in odd:
            if lists[rank][index] != entry:
                return (
                    f"the first that differs is number {index} from 0 on: {_described(entry)} on rank "
                    f"{names[0]}, {_described(lists[rank][index])} on rank {names[rank]}"
                )
    return "they differ in nothing that can be shown"


def _described(entry: tuple[int, int]) -> str:
    number, count = entry
    if number == _NOTHING:
        return "nothing"
    return "None" if entry == _NO_GRADIENT else f"{count} {_bucket_memory.name_of(number)}"
