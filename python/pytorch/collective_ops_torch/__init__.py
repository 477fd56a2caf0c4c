"""The PyTorch backend of collective-ops.

    torch.distributed.init_process_group("collective_ops")

PyTorch finds it by itself (entry point `torch.backends`); nothing has to be imported. This module is imported
by every `import torch`, so it loads no native code and imports nothing of ours before a group is made.
docs/from_gloo.md says what the backend does and where it differs from Gloo.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["NAME", "dump_flight_recorder", "register"]

NAME = "collective_ops"


def register(name: str = NAME) -> None:
    """Makes the backend known to torch.distributed under `name`. A second time it does nothing."""
    import torch.distributed

    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    if name.upper() not in backend._plugins:

        def create(options: Any, backend_options: Any) -> Any:
            return _create(name, options, backend_options)

        backend.register_backend(name, create, extended_api=True, devices=["cpu"])


def dump_flight_recorder(file: str | os.PathLike[str], only_active: bool = False) -> None:
    """Writes the last calls of this process to `file`, in the schema of PyTorch's flight recorder.

    Files of all ranks in one folder, named PREFIX and the rank, are what `torchfrtrace FOLDER` reads; it
    names the rank that a call waits for. `only_active`: only calls that have not ended.
    """
    with open(file, "wb") as out:
        out.write(_load()._torch.dump_flight_recorder(only_active))


def _autoload() -> None:
    """What PyTorch calls at the end of its import. Whatever goes wrong here must not break that."""
    try:
        register()
    except Exception as error:  # noqa: BLE001
        import warnings

        warnings.warn(f"collective-ops-torch: the backend is not registered: {error}", stacklevel=2)


def _create(name: str, options: Any, backend_options: Any) -> Any:
    """A rank's end of a new process group; blocks until all its ranks are there."""
    import torch.distributed

    base = torch._C._distributed_c10d.Backend.Options
    if backend_options is not None and not isinstance(backend_options, base):
        raise TypeError(
            f"init_process_group: pg_options of type {type(backend_options).__name__}: "
            f"{name} takes torch.distributed.Backend.Options or none"
        )
    if not torch.accelerator.is_available():
        # DDP's buckets in memory that the ranks share: PyTorch asks for it so. It reads this when DDP is made
        # and for groups of accelerators, too: there it stays as the program has it.
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    return _load().create(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
        name,
    )


def _load() -> Any:
    """The module _torch, loaded when the first group is made."""
    import torch

    # First, so that both packages share the library that this one brings.
    importlib.import_module("collective_ops")
    try:
        return importlib.import_module("collective_ops_torch._native")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"collective-ops-torch is not built ({error}): make build, or "
            "pip install --no-build-isolation collective-ops-torch"
        ) from error
    except ImportError as error:
        raise ImportError(
            f"collective-ops-torch cannot be loaded with PyTorch {torch.__version__}: {error}. It is "
            "compiled for one version of PyTorch: build it again with this one (make build, or "
            "pip install --no-build-isolation --force-reinstall collective-ops-torch)"
        ) from error
