"""Loads the native module, checks that it fits, and sees to it that groups are left before Python ends."""

from __future__ import annotations

import atexit

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
# Unfinished calls need a living interpreter: their tensors and the callbacks of futures belong to Python.
atexit.register(_torch.shutdown_all)
