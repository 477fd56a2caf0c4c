"""Groups of some ranks, whose calls go on beside those of all ranks and of other groups."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import _api, _core, _exchange, _messages
from ._api import Seconds, communicator
from .errors import InvalidArgumentError


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as a method, which gives the group itself."""
    signature = inspect.signature(function)
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]

    @functools.wraps(function)
    def method(self: Group, *arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, group=self, **keywords)

    parameters = own + [each for name, each in signature.parameters.items() if name != "group"]
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


class Group:
    """Ranks that call together. new_group() makes one; `group.allreduce(t)` is `allreduce(t, group=group)`.

    Attributes:
        rank: of this process in the group, from 0.
        size: the number of its ranks.
        ranks: their ranks in the world, by rank in the group.
        name: as given, "" where it was not.
    """

    __slots__ = ("__weakref__", "_communicator", "name", "rank", "ranks", "size")

    def __init__(self, communicator: _core.Communicator) -> None:
        self._communicator: _core.Communicator | None = communicator
        self.rank: int = communicator.rank
        self.size: int = communicator.world_size
        self.ranks: list[int] = communicator.ranks
        self.name: str = communicator.name
        _api._groups.add(self)

    def __repr__(self) -> str:
        name = f'"{self.name}" ' if self.name else ""
        return f"group {name}of rank{'s' if self.size > 1 else ''} {','.join(map(str, self.ranks))}"

    allreduce = _method(_api.allreduce)
    broadcast = _method(_api.broadcast)
    allgather = _method(_api.allgather)
    reducescatter = _method(_api.reducescatter)
    reduce = _method(_exchange.reduce)
    gather = _method(_exchange.gather)
    scatter = _method(_exchange.scatter)
    alltoall = _method(_exchange.alltoall)
    barrier = _method(_api.barrier)
    send = _method(_messages.send)
    recv = _method(_messages.recv)
    isend = _method(_messages.isend)
    irecv = _method(_messages.irecv)
    sendrecv = _method(_messages.sendrecv)
    counters = _method(_api.counters)

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        name: str | None = None,
        timeout: Seconds | None = None,
        *,
        connect_timeout: Seconds | None = None,
    ) -> Group:
        """A group of some of this one's ranks, which `ranks` names by their ranks here. As `new_group`."""
        return _made(communicator("new_group", self), ranks, name, timeout, connect_timeout)

    def abort(self, reason: str = "a rank aborted it") -> None:
        """From any thread: ends the call that runs, here and on all its ranks, with GroupBrokenError and this
        text. The group cannot be used afterwards; other groups go on."""
        communicator("abort", self).abort(f"rank {self.ranks[self.rank]} aborted {self!r}: {reason}")

    def close(self) -> None:
        """Leaves the group, after what was started is done; members that still wait for this rank get
        PeerLostError. The last reference going, or finalize(), does it too."""
        left, self._communicator = self._communicator, None
        if left is not None:
            left.close()


def new_group(
    ranks: Sequence[int] | None = None,
    name: str | None = None,
    timeout: Seconds | None = None,
    *,
    connect_timeout: Seconds | None = None,
) -> Group:
    """A group of some ranks. Its members alone call this, all with the same list; it blocks until they have.

    Args:
        ranks: of the world, in the order of the ranks in the group; this process's is one of them. Default:
            all, as a second group.
        name: for texts, traces and `collective-ops status`; threads of one process that make groups of the
            same ranks at once give each its own.
        timeout: seconds that a call may wait for other ranks; default: that of init_hccl.
        connect_timeout: seconds to wait here for all members; default HCCL_CONNECT_TIMEOUT.

    Raises InvalidArgumentError for a list that cannot be, also where this rank is not in it (ranks that are
    not members go on without calling this), RendezvousError where members did not come, which are named, and
    PeerLostError where one has died.
    """
    return _made(communicator("new_group"), ranks, name, timeout, connect_timeout)


def _made(
    of: _core.Communicator,
    ranks: Sequence[int] | None,
    name: str | None,
    timeout: Seconds | None,
    connect_timeout: Seconds | None,
) -> Group:
    try:
        numbers = list(range(of.world_size)) if ranks is None else [operator.index(rank) for rank in ranks]
    except TypeError:
        raise InvalidArgumentError(f"new_group: ranks={ranks!r}: give a list of whole numbers") from None
    if not (name is None or isinstance(name, str)):
        raise InvalidArgumentError(f"new_group: name={name!r} is a {type(name).__name__}; give a str")
    if name and not name.isprintable():
        raise InvalidArgumentError(f"new_group: name={name!r}: give letters that can be printed, in one line")
    if connect_timeout == 0:
        raise InvalidArgumentError("new_group: connect_timeout=0: at least 0.001 s, so that members can come")
    if any(abs(number) >= 2**31 for number in numbers):
        raise InvalidArgumentError(
            f"new_group: ranks={ranks!r}: the world has ranks 0 to {of.world_size - 1}"
        )
    return Group(of.create_group(numbers, name or "", timeout, connect_timeout))
