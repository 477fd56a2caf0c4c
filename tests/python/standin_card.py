"""A stand-in for a card, for tests without one: tensors that lie on an npu, and a backend named hccl.

The numbers lie in the host's memory, and Gloo moves them. What a real card's package brings is here as it
brings it: a device type of PyTorch's (PrivateUse1, renamed), a backend registered with torch.distributed.
Collectives on these tensors by anything else than that backend fail.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND, BACKEND = "npu", "hccl"
calls: list[str] = []  # what the backend was asked for


class _Module:
    """torch.npu"""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


class CardTensor(torch.Tensor):
    """Operations run on `host`, a tensor of the CPU; results lie on the card again."""

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> CardTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=f"{KIND}:0",
            requires_grad=host.requires_grad,
        )

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[int, CardTensor] = {}

        def host(value: Any) -> Any:
            if isinstance(value, torch.device) and value.type == KIND:
                return torch.device("cpu")
            if not isinstance(value, CardTensor):
                return value
            given[id(value.host)] = value
            return value.host

        def card(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return given[id(value)] if id(value) in given else CardTensor(value)

        result = function(*_pytree.tree_map(host, args), **_pytree.tree_map(host, kwargs or {}))
        return _pytree.tree_map(card, result)


def _on_hosts(name: str, of_gloo: str) -> Any:
    def call(self: Any, *args: Any) -> Any:
        calls.append(name)

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and not isinstance(value, CardTensor):
                raise RuntimeError(f"{BACKEND} works on tensors of {KIND} alone")
            return value.host if isinstance(value, CardTensor) else value

        return getattr(self.inner, of_gloo)(*_pytree.tree_map(host, list(args)))

    return call


_NAMES = {name: name for name in "allreduce broadcast allgather reduce gather scatter alltoall".split()}
_NAMES |= {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base"}
_NAMES |= {"all_to_all_single": "alltoall_base", "reduce_scatter": "reduce_scatter"}
_NAMES |= {name: name for name in list(_NAMES.values()) if name not in _NAMES}  # PyTorch's older names


class _Group(dist.ProcessGroup):
    """A process group whose collectives take CardTensors."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return BACKEND


for _name, _of_gloo in _NAMES.items():
    setattr(_Group, _name, _on_hosts(_name, _of_gloo))


_libraries: list[Any] = []


def _empty(size: Any, dtype: Any = None, **_: Any) -> CardTensor:
    return CardTensor(torch.empty(size, dtype=dtype))


def install(backend: bool = True) -> None:
    """Once per process. Without `backend` the card's package is there, but not its library."""
    _setup_privateuseone_for_python_backend(KIND, _Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    _libraries.append(library)  # an operator goes with its library
    if backend:
        dist.Backend.register_backend(BACKEND, _Group, devices=[KIND])


def on_card(host: torch.Tensor) -> torch.Tensor:
    return CardTensor(host)


def off_card(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, CardTensor)
    return tensor.host
