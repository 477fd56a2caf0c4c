"""One exception per error code of the core; docs/errors.md says what is behind each.

All are CollectiveError, and also the built-in exception that means the same, where there is one. `code` is
the name of the code. After `mismatch`, `timeout`, `peer_lost` and `interrupted` the group is broken: each
later call on it raises GroupBrokenError.
"""

from __future__ import annotations


class CollectiveError(RuntimeError):
    """What every failure of this library is."""

    code = "internal"


class InvalidArgumentError(CollectiveError, ValueError):
    """A value of the caller's cannot be used. Nothing was sent."""

    code = "invalid_argument"


class UnsupportedTypeError(CollectiveError, TypeError):
    """Elements of this type cannot be moved, or not be reduced by this operation."""

    code = "unsupported_type"


class MismatchError(CollectiveError):
    """Ranks made different calls; the text names ranks and fields."""

    code = "mismatch"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A deadline passed; the text names who did not come."""

    code = "timeout"


class PeerLostError(CollectiveError):
    """A rank died or left while others needed it."""

    code = "peer_lost"


class GroupBrokenError(CollectiveError):
    """An earlier failure made the group unusable; the text repeats it."""

    code = "group_broken"


class OutOfMemoryError(CollectiveError, MemoryError):
    """Shared memory does not fit into the limits found."""

    code = "out_of_memory"


class RendezvousError(CollectiveError):
    """Ranks could not form a group."""

    code = "rendezvous"


class DuplicateRankError(RendezvousError):
    """A second living process claims a rank."""

    code = "duplicate_rank"


class VersionMismatchError(RendezvousError):
    """Ranks run different builds of this library."""

    code = "version_mismatch"


class NotInitializedError(CollectiveError):
    """There is no group: `init_hccl` was not called, or not in this process (a fork)."""

    code = "not_initialized"


class SystemCallError(CollectiveError, OSError):
    """A call to the operating system failed; the text names it."""

    code = "system"


class InterruptedCallError(CollectiveError):
    """A wait inside a call was ended from outside. (Ctrl-C raises KeyboardInterrupt instead.)"""

    code = "interrupted"


class InternalError(CollectiveError):
    """A defect of this library; please report it."""

    code = "internal"


_TYPES: dict[str, type[CollectiveError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        UnsupportedTypeError,
        MismatchError,
        CollectiveTimeoutError,
        PeerLostError,
        GroupBrokenError,
        OutOfMemoryError,
        RendezvousError,
        DuplicateRankError,
        VersionMismatchError,
        NotInitializedError,
        SystemCallError,
        InterruptedCallError,
        InternalError,
    )
}


def error_type(code: str) -> type[CollectiveError]:
    """The exception of a code, as the core names it."""
    return _TYPES.get(code, CollectiveError)
