"""The torch.distributed group of a card's own backend, for the ranks of a group of ours."""

from __future__ import annotations

import atexit
import weakref
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from . import _api
from .errors import InvalidArgumentError, MismatchError, RendezvousError

# The backend of torch.distributed for the tensors of a kind of device; the same order on all ranks.
BACKENDS = {"npu": "hccl", "cuda": "nccl"}

_PACKAGES = {"hccl": "import torch_npu, in the version that belongs to this PyTorch"}
_STORE_S = 120  # for ranks to find the store: HCCL_CONNECT_TIMEOUT's own default

# Whether and how torch.distributed has been initialised by the program itself.
_NOT, _WITH_BACKEND, _WITHOUT_BACKEND, _OTHER_RANKS = range(4)

# By communicator and kind of device.
_groups: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_initialised_here = False


def problem(kind: str) -> int:
    """1 where this process cannot make a group for tensors of that kind; 0: none known."""
    import torch.distributed as dist

    return int(not dist.is_available() or not dist.is_backend_available(BACKENDS[kind]))


def explain(kind: str, ranks: list[int]) -> str:
    backend = BACKENDS[kind]
    help_ = _PACKAGES.get(backend, "install a PyTorch that has it")
    return (
        f"tensors on {kind} need torch.distributed's backend {backend}, which ranks {ranks} do not have; "
        f"{help_}, or move the tensors to the CPU"
    )


def group_of(comm: Any, kind: str, timeout: Any) -> Any:
    """Made on the first call, which all ranks make together."""
    known = _groups.setdefault(comm, {})
    if kind not in known:
        known[kind] = _make(comm, kind, timeout)
    return known[kind]


def leave() -> None:
    """Ends what was made here; what the program has initialised itself stays."""
    global _initialised_here
    _groups.clear()
    if _initialised_here:
        import torch.distributed as dist

        _initialised_here = False
        if dist.is_initialized():
            dist.destroy_process_group()


def _forget() -> None:
    """At the end of the process: ending a card's group then would wait for ranks that may have died."""
    global _initialised_here
    _initialised_here = False


atexit.register(_forget)  # before _api's own, which was registered earlier


def _make(comm: Any, kind: str, timeout: Any) -> Any:
    import torch.distributed as dist

    everybody = list(range(_api.world_size()))
    states = _everyones(comm, _state(dist, comm, kind, len(everybody)), timeout)
    if _OTHER_RANKS in states:
        raise InvalidArgumentError(
            f"ranks {_where(comm, states, _OTHER_RANKS)} have initialised "
            "torch.distributed with other ranks than this group's; initialise it with the same RANK and "
            "WORLD_SIZE, or not at all: the first call with a card's tensor does it then"
        )
    if len(set(states)) > 1:
        raise MismatchError(
            f"torch.distributed is initialised differently on the ranks for tensors on {kind}: "
            f"{states} (0: not, 1: with {BACKENDS[kind]}, 2: without). Initialise it alike, or nowhere"
        )
    if comm.ranks == everybody and states[0] == _WITH_BACKEND:
        return dist.group.WORLD
    if comm.ranks != everybody and states[0] == _NOT:
        raise InvalidArgumentError(
            f"tensors on {kind} in a group of some ranks: make a call with such tensors on all ranks first, "
            "which initialises torch.distributed; or do that yourself"
        )
    if comm.ranks != sorted(comm.ranks):
        raise InvalidArgumentError(
            f"tensors on {kind} in a group of ranks {comm.ranks}: torch.distributed sorts ranks; make this "
            "one with ranks in ascending order"
        )
    make = _initialise if states[0] == _NOT else _new_group
    made, error = _tried(lambda: make(dist, comm, BACKENDS[kind], timeout))
    failed = _where(comm, _everyones(comm, int(error is not None), timeout), 1)
    if failed:
        own = f" Here: {error}" if error is not None else ""
        raise RendezvousError(
            f"ranks {failed} could not make a group of torch.distributed's {BACKENDS[kind]} for tensors on "
            f"{kind}; look at their own errors.{own}"
        ) from error
    return made


def _where(comm: Any, values: list[int], value: int) -> list[int]:
    """The ranks of the world that have it."""
    return [rank for rank, each in zip(comm.ranks, values, strict=True) if each == value]


def _state(dist: Any, comm: Any, kind: str, world_size: int) -> int:
    if not dist.is_initialized():
        return _NOT
    if (dist.get_rank(), dist.get_world_size()) != (comm.ranks[comm.rank], world_size):
        return _OTHER_RANKS
    backends = dict(part.split(":") for part in str(dist.get_backend_config()).split(",") if ":" in part)
    return _WITH_BACKEND if kind in backends else _WITHOUT_BACKEND


def _new_group(dist: Any, comm: Any, backend: str, timeout: Any) -> Any:
    return dist.new_group(comm.ranks, backend=backend, use_local_synchronization=True)


def _initialise(dist: Any, comm: Any, backend: str, timeout: Any) -> Any:
    """With a store that rank 0 serves on a port the kernel picks."""
    global _initialised_here
    wait = timedelta(seconds=_STORE_S)
    store, error = None, None
    if comm.rank == 0:
        store, error = _tried(lambda: dist.TCPStore("127.0.0.1", 0, None, True, wait, wait_for_workers=False))
    port = array("q", [store.port if store is not None else 0])
    comm.broadcast(port, 0, timeout, False)
    if error is not None:
        raise error
    if port[0] == 0:
        raise RendezvousError("rank 0 could not open a port for torch.distributed's store")
    if store is None:
        store = dist.TCPStore("127.0.0.1", port[0], None, False, wait)
    dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.world_size)
    _initialised_here = True
    return dist.group.WORLD


def _everyones(comm: Any, mine: int, timeout: Any) -> list[int]:
    received = array("q", bytes(8 * comm.world_size))
    comm.agree(array("q", [mine]), received, timeout)
    return list(received)


def _tried(make: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return make(), None
    except Exception as error:  # whatever that library raises: the other ranks are told
        return None, error
