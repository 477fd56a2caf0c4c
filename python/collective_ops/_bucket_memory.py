"""Memory of buckets, by kind: a type in the host's memory, "float32", or in a card's, "float32 on npu:0"."""

from __future__ import annotations

from typing import Any

from . import _core
from ._libraries import runner_of

_NUMBERS = {name: number for number, name in enumerate(_core.data_types)}
_KINDS_OF_DEVICE = 1000  # apart from the numbers of types


def described(tensor: Any) -> tuple[str, int]:
    """Kind and elements of what is added to a bucket."""
    if _on_card(tensor):
        from . import _device

        return f"{_device.type_name(tensor)} on {tensor.device}", tensor.numel()
    dtype, count, _ = _core.describe_array(tensor)
    return dtype, count


def size_of(kind: str) -> int:
    """Bytes of an element."""
    return _core.type_sizes[kind.partition(" ")[0]]


def number_of(kind: str) -> int:
    """Equal on all ranks for equal kinds, whatever the number of the card."""
    dtype, _, device = kind.partition(" on ")
    if not device:
        return _NUMBERS[dtype]
    from . import _device

    return _NUMBERS[dtype] + _KINDS_OF_DEVICE * (1 + list(_device.BACKENDS).index(device.partition(":")[0]))


def name_of(number: int) -> str:
    device, dtype = divmod(number, _KINDS_OF_DEVICE)
    if not device:
        return _core.data_types[dtype]
    from . import _device

    return f"{_core.data_types[dtype]} on {list(_device.BACKENDS)[device - 1]}"


def memory_of(kind: str, count: int) -> Any:
    dtype, _, device = kind.partition(" on ")
    return CardMemory(kind, count) if device else _core.SharedArray([count], dtype)


def kind_of(memory: Any) -> str:
    return memory.kind if isinstance(memory, CardMemory) else memory.dtype


def flat_tensor(memory: Any) -> Any:
    """The whole memory as a one-dimensional tensor."""
    import torch

    return memory.tensor if isinstance(memory, CardMemory) else torch.from_dlpack(memory)


def start_allreduce(comm: Any, what: Any, op: Any) -> Any:
    """Work whose wait() gives `what` the reduction of all ranks'."""
    what = what.tensor if isinstance(what, CardMemory) else what
    if (run := runner_of(what)) is not None:
        from ._api import allreduce

        return run(comm, allreduce, what, op, True, None)
    return comm.all_reduce(what, op, None, True)


class CardMemory:
    """Of a card: what a bucket uses of SharedArray."""

    def __init__(self, kind: str, count: int) -> None:
        import torch

        dtype, _, device = kind.partition(" on ")
        dtype = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
        self.kind, self.size = kind, count
        self.tensor = torch.empty(count, dtype=getattr(torch, dtype), device=device)

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def slice(self, first: int, count: int) -> Any:
        return self.tensor[first : first + count]

    def copy_in(self, first: int, tensor: Any) -> None:
        source = tensor.detach()
        self.slice(first, source.numel()).view(source.shape).copy_(source)

    def copy_out(self, first: int, tensor: Any) -> None:
        target = tensor.detach()
        target.copy_(self.slice(first, target.numel()).view(target.shape))

    def zero(self) -> None:
        self.tensor.zero_()


def _on_card(tensor: Any) -> bool:
    return hasattr(tensor, "is_cpu") and runner_of(tensor) is not None
