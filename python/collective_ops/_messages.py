"""Messages between two ranks: thin calls of the core, in PyTorch's spelling.

Destinations and sources are ranks of the world, also in a group, as in PyTorch; only members can be named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from ._api import Array, Seconds, Work, communicator
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .groups import Group


class MessageWork(Work):
    """A started send or receive. Its array must not be touched until `wait` has returned."""

    __slots__ = ("_group",)

    def __init__(self, work: _core.Work, group: Group | None) -> None:
        super().__init__(work, lambda: self.source)
        self._group = group

    @property
    def source(self) -> int | None:
        """The rank that the message came from, once a receive is done; None before, and of a send."""
        return _world_rank(self._work.source(), self._group)


def send(
    tensor: Array, dst: int, tag: int = 0, timeout: Seconds | None = None, *, group: Group | None = None
) -> None:
    """Sends `tensor` to rank `dst`, and returns when `tensor` may be changed.

    Args:
        tensor: of any type and strides; the receiver's has the same type and number of elements.
        tag: from 0. Receives take the messages of a source and tag in the order in which they were sent.
        timeout: seconds to wait for the receiver; 0: for ever; default: that of init_hccl or new_group.
        group: default: all ranks. `dst` is a rank of the world all the same.

    Up to 16 KiB (less with more than 8 ranks) a message is on its way at once; a larger one waits for its
    receiver. Where both ranks send first, use `isend` or `sendrecv`. A rank may send to itself.
    """
    comm = communicator("send", group)
    comm.transfer([(True, tensor, _group_rank("send", "dst", dst, group), tag)], timeout, False)


def recv(
    tensor: Array,
    src: int | None = None,
    tag: int = 0,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> int:
    """Receives into `tensor` the next message with this tag of rank `src`, by default of any rank.

    Returns the rank that sent it. MismatchError on both sides where type or number of elements differ; the
    other arguments are those of `send`.
    """
    comm = communicator("recv", group)
    item = (False, tensor, _group_rank("recv", "src", src, group), tag)
    return _world_rank(comm.transfer([item], timeout, False)[0], group)


def isend(
    tensor: Array, dst: int, tag: int = 0, timeout: Seconds | None = None, *, group: Group | None = None
) -> MessageWork:
    """`send`, without waiting. The message goes on by itself, also where the Work is dropped: a rank that
    leaves waits for its receiver first, or says on standard error that there was none."""
    comm = communicator("isend", group)
    item = (True, tensor, _group_rank("isend", "dst", dst, group), tag)
    return MessageWork(comm.transfer([item], timeout, True)[0], group)


def irecv(
    tensor: Array,
    src: int | None = None,
    tag: int = 0,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> MessageWork:
    """`recv`, without waiting: `wait()` of the Work returns the source, which is its `source` too."""
    comm = communicator("irecv", group)
    item = (False, tensor, _group_rank("irecv", "src", src, group), tag)
    return MessageWork(comm.transfer([item], timeout, True)[0], group)


def sendrecv(
    send_tensor: Array,
    dst: int,
    recv_tensor: Array,
    src: int | None = None,
    send_tag: int = 0,
    recv_tag: int | None = None,
    timeout: Seconds | None = None,
    *,
    group: Group | None = None,
) -> int:
    """Sends and receives at once, so that rings and pairs of ranks cannot block each other.

    `recv_tag` is `send_tag` where not given. Returns the source, as `recv` does.
    """
    comm = communicator("sendrecv", group)
    items = [
        (True, send_tensor, _group_rank("sendrecv", "dst", dst, group), send_tag),
        (
            False,
            recv_tensor,
            _group_rank("sendrecv", "src", src, group),
            send_tag if recv_tag is None else recv_tag,
        ),
    ]
    return _world_rank(comm.transfer(items, timeout, False)[1], group)


class P2POp:
    """One message of `batch_isend_irecv`, with PyTorch's arguments.

    Args:
        op: `isend` or `irecv`, of this package or of torch.distributed.
        peer: destination or source, a rank of the world; None for a receive from any rank.
    """

    __slots__ = ("group", "op", "peer", "tag", "tensor")

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Array,
        peer: int | None,
        group: Group | None = None,
        tag: int = 0,
    ) -> None:
        if getattr(op, "__name__", None) not in ("isend", "irecv"):
            raise InvalidArgumentError(f"P2POp: op={op!r}: give isend or irecv")
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag

    @property
    def sends(self) -> bool:
        return self.op.__name__ == "isend"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp], timeout: Seconds | None = None) -> list[MessageWork]:
    """Starts all of them at once, in this order; one Work for each. No order among the ranks can block it."""
    if not isinstance(p2p_op_list, list | tuple) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise InvalidArgumentError("batch_isend_irecv: give a list of collective_ops.P2POp")
    works: list[MessageWork | None] = [None] * len(p2p_op_list)
    # By group: a refused message of one of them is then found before any of that group is sent.
    for group in dict.fromkeys(op.group for op in p2p_op_list):
        places = [place for place, op in enumerate(p2p_op_list) if op.group is group]
        items = [
            (op.sends, op.tensor, _group_rank("P2POp", "peer", op.peer, group), op.tag)
            for op in (p2p_op_list[place] for place in places)
        ]
        started = communicator("batch_isend_irecv", group).transfer(items, timeout, True)
        for place, work in zip(places, started, strict=True):
            works[place] = MessageWork(work, group)
    return works  # type: ignore[return-value]


def _group_rank(caller: str, name: str, world_rank: int | None, group: Group | None) -> int | None:
    if group is None or world_rank is None:
        return world_rank
    if world_rank not in group.ranks:
        raise InvalidArgumentError(f"{caller}: {name}={world_rank} is no rank of {group!r}")
    return group.ranks.index(world_rank)


def _world_rank(rank: Any, group: Group | None) -> Any:
    return rank if group is None or rank is None else group.ranks[rank]
