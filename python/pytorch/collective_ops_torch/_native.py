"""Loads the native module, checks that it fits, and sees to it that groups are left before Python ends."""

from __future__ import annotations

import atexit
import os
import sys

import collective_ops
import torch

from . import _torch

if _torch.torch_version.split(".")[:2] != torch.__version__.split(".")[:2]:
    raise ImportError(f"it was compiled for PyTorch {_torch.torch_version}")
if _torch.__version__ != collective_ops.__version__:
    raise ImportError(
        f"it is version {_torch.__version__}, and collective-ops is version {collective_ops.__version__}"
    )

create = _torch.create
ProcessGroup = _torch.ProcessGroupCollectiveOps
Lease, SharedSlots, SlotPlaces = _torch.Lease, _torch.SharedSlots, _torch.SlotPlaces


def _leave() -> None:
    """Unfinished calls need a living interpreter, to which their tensors and the callbacks of futures belong.
    A program that ends by an exception finishes none of them, and its peers are told."""
    error = getattr(sys, "last_value", None)
    program = f"the program of process {os.getpid()}"
    _torch.shutdown_all(f"{program} ended by {type(error).__name__}: {error}" if error else "")


atexit.register(_leave)
