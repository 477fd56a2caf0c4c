"""torch.distributed's process group, where it is one of collective_ops_torch: init_hccl joins it."""

from __future__ import annotations

import sys
from typing import Any

from . import _core
from .errors import InvalidArgumentError


def process_group(rank: int, world_size: int, timeout: Any) -> _core.Communicator | None:
    """This rank's end of the default process group; None where there is none, or of another backend.

    `timeout`: of calls made through what is returned. InvalidArgumentError where the process group has
    another rank or size.
    """
    distributed = sys.modules.get("torch.distributed")
    native = sys.modules.get("collective_ops_torch._native")
    if distributed is None or native is None or not distributed.is_initialized():
        return None
    import torch

    try:
        backend = distributed.group.WORLD._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none for CPUs
        return None
    if not isinstance(backend, native.ProcessGroup):
        return None
    if (rank, world_size) != (backend.rank(), backend.size()):
        raise InvalidArgumentError(
            f"init_hccl: rank {rank} of {world_size}, but this process is rank {backend.rank()} of "
            f"{backend.size()} of torch.distributed's process group; give the same, or a job_id of its own"
        )
    return _core.Communicator.adopt(backend.share(), timeout)
