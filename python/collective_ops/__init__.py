"""Collectives for the ranks of one host.

    from collective_ops import init_hccl, allreduce

    init_hccl()                                # or rank=, world_size=, device_id=
    ...
    loss.backward()
    for param in model.parameters():
        if param.grad is not None:
            allreduce(param.grad, op="avg")    # in place; the same parameters on all ranks

Arrays are PyTorch tensors, numpy arrays, or anything else with DLPack or the buffer protocol; PyTorch is not
needed. docs/python_api.md is the reference.
"""

from .environment import check_environment

# Before anything of the user's reads RANK, and fails with less to say.
check_environment()

try:
    from . import _core as _core
except ImportError as error:
    if "cannot import name" not in str(error):
        raise
    raise ImportError(
        "collective_ops is not built for this Python: there is no module _core beside the package's files. "
        "In a source tree: make build, then .venv/bin/python; else install it with this Python's pip",
        name="collective_ops._core",
    ) from None

from ._api import (  # noqa: E402
    Work,
    allgather,
    allreduce,
    barrier,
    broadcast,
    counters,
    create_root_info,
    data_types,
    device,
    empty,
    finalize,
    init_hccl,
    is_initialized,
    kernel_target,
    rank,
    reduce_ops,
    reducescatter,
    world_size,
)
from ._core import __version__  # noqa: E402
from ._exchange import alltoall, gather, reduce, scatter  # noqa: E402
from ._messages import (  # noqa: E402
    MessageWork,
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
    sendrecv,
)
from .bucket import BucketStats, GradientBucket  # noqa: E402
from .environment import LaunchEnvironmentError  # noqa: E402
from .errors import (  # noqa: E402
    CollectiveError,
    CollectiveTimeoutError,
    DuplicateRankError,
    GroupBrokenError,
    InternalError,
    InterruptedCallError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    OutOfMemoryError,
    PeerLostError,
    RendezvousError,
    SystemCallError,
    UnsupportedTypeError,
    VersionMismatchError,
)
from .groups import Group, new_group  # noqa: E402
from .reduction import premul_sum  # noqa: E402

__all__ = [
    "BucketStats",
    "CollectiveError",
    "CollectiveTimeoutError",
    "DuplicateRankError",
    "GradientBucket",
    "Group",
    "GroupBrokenError",
    "InternalError",
    "InterruptedCallError",
    "InvalidArgumentError",
    "LaunchEnvironmentError",
    "MessageWork",
    "MismatchError",
    "NotInitializedError",
    "OutOfMemoryError",
    "P2POp",
    "PeerLostError",
    "RendezvousError",
    "SystemCallError",
    "UnsupportedTypeError",
    "VersionMismatchError",
    "Work",
    "__version__",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "counters",
    "data_types",
    "device",
    "empty",
    "create_root_info",
    "finalize",
    "gather",
    "init_hccl",
    "irecv",
    "is_initialized",
    "isend",
    "kernel_target",
    "new_group",
    "premul_sum",
    "rank",
    "recv",
    "reduce",
    "reduce_ops",
    "reducescatter",
    "scatter",
    "send",
    "sendrecv",
    "world_size",
]
