"""FSDP2's gathered parameters once per host instead of once per rank.

    from collective_ops_torch.fsdp import share_gathered_parameters

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    share_gathered_parameters(model)  # on every rank, before the first forward

Ranks of a group then gather into pages that all of them map, and the parameters that a module computes with
lie in such pages, too. Whoever reads them is counted: pages are used again once every rank has freed what lay
there; until then, and where memory is short, a rank has private memory, as always. No rank waits for another
one's reading. A gathered parameter must not be written to: the other ranks read it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from ._native import Lease, ProcessGroup, SharedSlots, SlotPlaces

__all__ = ["share_gathered_parameters"]

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
# Outputs of all-gathers that are alive at once: FSDP2 gathers one module ahead, and frees one behind.
_OUTPUT_SLOTS = 3
_ALIGNMENT = 64


def share_gathered_parameters(model: torch.nn.Module) -> int:
    """Gives every FSDP2 module in `model` an all-gather into shared pages. Returns how many there are.

    It calls `set_custom_all_gather`. ValueError where a module has gathered its parameters already, is
    sharded anew after forward (`reshard_after_forward=N`), or its group's CPU backend is another one.
    """
    found = 0
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        params = module._get_fsdp_state()._fsdp_param_group
        if params is None or params._all_gather_process_group.size() == 1:
            continue
        _check(name or "the model", params)
        module.set_custom_all_gather(_SharedAllGather(_gathered_of(params._all_gather_process_group), params))
        found += 1
    return found


def _check(name: str, params: Any) -> None:
    backend = params._all_gather_process_group._get_backend(torch.device("cpu"))
    if not isinstance(backend, ProcessGroup):
        raise ValueError(
            f"{name}: gathered by {backend.name()}; its group's CPU backend must be collective_ops"
        )
    after = params.post_forward_mesh_info
    if after is not None and after is not params.mesh_info:
        raise ValueError(f"{name}: reshard_after_forward=N gathers over other ranks; use True or False")
    if any(param.all_gather_outputs for param in params.fsdp_params):
        raise ValueError(f"{name} has gathered its parameters before; call this before the first forward")


class _Gathered:
    """What the ranks of a group have gathered: how often, and the slots for it by size."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.backend = group._get_backend(torch.device("cpu"))
        self.number = 0
        self.outputs: dict[int, SharedSlots] = {}
        self.parameters: dict[int, SharedSlots] = {}
        self.users: dict[int, int] = {}  # modules whose parameters take so many bytes

    def slots(self, kind: dict[int, SharedSlots], size: int) -> SharedSlots:
        if size not in kind:
            kind[size] = SharedSlots(self.backend, size)
        return kind[size]


_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, _Gathered] = weakref.WeakKeyDictionary()


def _gathered_of(group: dist.ProcessGroup) -> _Gathered:
    if group not in _groups:
        _groups[group] = _Gathered(group)
    return _groups[group]


class _SharedAllGather(AllGather):
    """Of one module."""

    def __init__(self, gathered: _Gathered, params: Any) -> None:
        self.gathered = gathered
        self.params = weakref.ref(params)
        self.places = SlotPlaces()
        self.place_count = 0
        self.size = 0  # bytes of its gathered parameters, once that is known
        self.output: Lease | None = None

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        elements = math.prod(int(extent) for extent in size)
        self.gathered.number += 1
        slots = self.gathered.slots(self.gathered.outputs, elements * dtype.itemsize)
        self.output = slots.take(self.gathered.number) if elements else None
        if self.output is None:
            return torch.empty(elements, dtype=dtype, device=device)
        return self.output.tensor(elements, dtype)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        gathering = _Gathering(self, output_tensor, input_tensor, group, async_op)
        if async_op:
            return gathering
        gathering.wait()
        return None

    def lay_out(self, world_size: int) -> None:
        """Finds each parameter's place in a slot; the first time, FSDP2 takes its tensors from here."""
        params = [param for param in self.params().fsdp_params if _is_plain(param)]
        sizes = [param._sharded_param_data.numel() * world_size for param in params]
        types = [param.param_dtype or param.orig_dtype for param in params]
        offsets = [0]
        for elements, dtype in zip(sizes, types, strict=True):
            offsets.append(offsets[-1] + -(-elements * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT)
        self.place_count, self.size = len(params), offsets[-1]
        self.gathered.users[self.size] = self.gathered.users.get(self.size, 0) + 1
        self._first = list(zip(params, sizes, types, offsets[:-1], strict=True))

    def hand_out(self, lease: Lease | None) -> None:
        """The module's parameters take their memory next, from here."""
        self.places.set(lease, self.place_count)
        for param, elements, dtype, offset in self._first:
            param.all_gather_outputs = [self.places.tensor(elements, dtype, offset)]
        self._first = []


def _is_plain(param: Any) -> bool:
    """Whether what is gathered is the parameter itself, not what an extension makes of it."""
    return not hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather")


class _Gathering(dist.Work):
    """One all-gather. Ranks tell each other which slots they have taken: where all have the same one, nothing
    more is to be done, since each has written its part there already."""

    def __init__(
        self,
        module: _SharedAllGather,
        output: torch.Tensor,
        part: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool,
    ) -> None:
        super().__init__()
        self.module, self.output, self.part, self.group = module, output, part, group
        self.number = module.gathered.number
        self.lease, module.output = module.output, None
        if not module.size:
            module.lay_out(group.size())
        self.place = self._parameter_slots().take(self.number) if module.size else None
        chosen = torch.tensor([-1 if lease is None else lease.index for lease in (self.lease, self.place)])
        self.chosen = torch.empty(2 * group.size(), dtype=chosen.dtype)
        self.work = _all_gather(self.chosen, chosen, group, async_op)
        self.done = False

    def wait(self, timeout: Any = None) -> bool:
        if self.done:
            return True
        self.done = True
        if self.work is not None:
            self.work.wait()
        outputs, places = self.chosen.view(-1, 2).unbind(1)
        if outputs[0] < 0 or (outputs != outputs[0]).any():
            _all_gather(self.output, self.part, self.group)
            slots = self.module.gathered.slots(self.module.gathered.outputs, self.output.nbytes)
            if len(slots) < _OUTPUT_SLOTS and self.output.nbytes:
                slots.add()
        if self.module.size and (places < 0).any():
            self._add_place()
        self.module.hand_out(self.place)
        self.lease = self.place = None
        return True

    def _parameter_slots(self) -> SharedSlots:
        return self.module.gathered.slots(self.module.gathered.parameters, self.module.size)

    def _add_place(self) -> None:
        """Every rank does this, since all know what each has chosen."""
        slots = self._parameter_slots()
        before = len(slots)
        if before > self.module.gathered.users[self.module.size]:
            return
        slots.add()
        if len(slots) > before:
            self.place = slots.take_slot(self.number, before)
