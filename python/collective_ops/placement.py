"""Gradients of PyTorch parameters that live in shared memory: GradientBucket(parameters=...)."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._bucket_memory import described, flat_tensor, memory_of
from ._device_group import BACKENDS
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .bucket import BucketStats

_ALIGNMENT = 64  # bytes, of every gradient


@dataclass
class Slot:
    """One parameter, and the place of its gradient: one-dimensional, never handed out. `view` is what is; its
    memory may be exchanged under it, as model.to() does."""

    parameter: Any
    place: Any
    view: Any
    address: int

    def settled(self) -> bool:
        return self.parameter.grad is self.view and self.view.data_ptr() == self.address

    def bind(self) -> None:
        self.view = self.place.view(self.parameter.shape)
        self.parameter.grad = self.view


class Placement:
    """Shared memory, or a card's, for the gradients of `parameters`, in reverse order as backward makes them:
    one piece per `bucket_bytes`, type and device. Public: slots, memories, layout (kind, count)."""

    def __init__(self, parameters: Iterable[Any], bucket_bytes: int) -> None:
        self.memories: list[Any] = []
        self.slots: list[Slot] = []
        parameters = _usable(parameters)
        for members in _partition(parameters, bucket_bytes):
            self._place(members)
        self.layout = [described(slot.place) for slot in self.slots]
        self._by_address = {slot.address: slot for slot in self.slots}
        warn_if_ddp_reduces(parameters)

    def take(self, tensor: Any, stats: BucketStats) -> bool:
        """Whether `tensor` is the gradient of a placed parameter; it is in its place afterwards."""
        slot = self._by_address.get(tensor.data_ptr()) if hasattr(tensor, "data_ptr") else None
        if slot is not None and tensor.numel() == slot.place.numel():
            return True
        for slot in self.slots:
            if slot.parameter.grad is tensor:
                self._settle(slot, stats)
                return True
        return False

    def collect(self, stats: BucketStats) -> None:
        """Every gradient is in its place afterwards: copied there if it had left, zeros if it was None."""
        for slot in self.slots:
            if not slot.settled():
                self._settle(slot, stats)

    def zero(self) -> None:
        for memory in self.memories:
            memory.zero()
        for slot in self.slots:
            if not slot.settled():
                slot.bind()

    def _place(self, members: list[Any]) -> None:
        steps = [_padded(parameter) for parameter in members]
        memory = memory_of(described(members[0].detach())[0], sum(steps))
        memory.zero()
        flat, first = flat_tensor(memory), 0
        for parameter, step in zip(members, steps, strict=True):
            place = flat[first : first + parameter.numel()]
            slot = Slot(parameter, place, None, place.data_ptr())
            if parameter.grad is not None:
                _copy(parameter.grad, place.view(parameter.shape))
            slot.bind()
            self.slots.append(slot)
            first += step
        self.memories.append(memory)

    @staticmethod
    def _settle(slot: Slot, stats: BucketStats) -> None:
        gradient = slot.parameter.grad
        if gradient is None:
            slot.place.zero_()
        elif gradient.layout != slot.place.layout or gradient.data_ptr() != slot.address:
            _copy(gradient, slot.place.view(slot.parameter.shape))
            stats.placed_anew += 1
            stats.copied_bytes += slot.place.numel() * slot.place.element_size()
        slot.bind()


def _usable(parameters: Iterable[Any]) -> list[Any]:
    """Those that get a gradient, each once, in reverse order."""
    if hasattr(parameters, "parameters") or hasattr(parameters, "data_ptr") or isinstance(parameters, str):
        raise InvalidArgumentError(
            f"GradientBucket(parameters=...): give model.parameters(), or a list of parameters, not a "
            f"{type(parameters).__name__}"
        )
    if not hasattr(parameters, "__iter__"):
        raise InvalidArgumentError(
            f"GradientBucket(parameters={parameters!r}): give model.parameters(), or a list of parameters"
        )
    unique = list({id(parameter): parameter for parameter in parameters}.values())
    for parameter in unique:
        if not hasattr(parameter, "requires_grad"):
            raise InvalidArgumentError(
                f"GradientBucket(parameters=...): a {type(parameter).__name__} is no torch parameter; give "
                "model.parameters()"
            )
        if parameter.device.type not in ("cpu", *BACKENDS):
            raise InvalidArgumentError(
                f"GradientBucket(parameters=...): a parameter lies on {parameter.device}; gradients are "
                "placed in the memory of the host, or of a card (npu, cuda)"
            )
    found = [parameter for parameter in unique if parameter.requires_grad and parameter.numel() > 0]
    if not found:
        raise InvalidArgumentError(
            "GradientBucket(parameters=...): none of them requires a gradient. An iterator that was read "
            "before is empty: give model.parameters() anew"
        )
    return found[::-1]


def _partition(parameters: list[Any], bucket_bytes: int) -> list[list[Any]]:
    """In order, each part of one type and not above bucket_bytes, but for single larger ones."""
    parts: list[list[Any]] = []
    open_parts: dict[Any, tuple[list[Any], int]] = {}
    for parameter in parameters:
        size = _padded(parameter) * parameter.element_size()
        kind = parameter.dtype, parameter.device
        members, used = open_parts.get(kind, ([], 0))
        if not members or used + size > bucket_bytes:
            members, used = [], 0
            parts.append(members)
        members.append(parameter)
        open_parts[kind] = (members, used + size)
    return parts


def _padded(parameter: Any) -> int:
    """Elements of its place, a multiple of the alignment."""
    step = _ALIGNMENT // parameter.element_size()
    return -(-parameter.numel() // step) * step


def _copy(gradient: Any, view: Any) -> None:
    if gradient.layout != view.layout:
        raise InvalidArgumentError(
            "GradientBucket: a sparse gradient cannot be placed; use a dense one (Embedding(sparse=False))"
        )
    if gradient.dtype != view.dtype or gradient.device != view.device:
        raise InvalidArgumentError(
            f"GradientBucket: a gradient was placed as {view.dtype} on {view.device}, and is now "
            f"{gradient.dtype} on {gradient.device}; make the bucket after model.to(...)"
        )
    view.copy_(gradient.detach())


_warned = False


def warn_if_ddp_reduces(tensors: Iterable[Any]) -> None:
    """Warns, once, where DistributedDataParallel averages the gradients of these parameters, or these
    gradients, already."""
    global _warned
    torch = sys.modules.get("torch")
    if (
        torch is None
        or _warned
        or not torch.distributed.is_available()
        or not torch.distributed.is_initialized()
    ):
        return
    ddp = torch.nn.parallel.DistributedDataParallel
    mine = {id(tensor) for tensor in tensors}
    for module in [candidate for candidate in gc.get_objects() if type(candidate) is ddp]:
        if any(id(p) in mine or id(p.grad) in mine for p in module.parameters()):
            _warned = True
            warnings.warn(
                "DistributedDataParallel reduces the gradients of these parameters during backward; reducing "
                "them again gives wrong steps. Use one of the two.",
                stacklevel=4,
            )
            return
