"""Arrays that the core cannot take as they are: tensors on a device, JAX's immutable arrays, MindSpore's
tensors. None of these libraries is imported here: where such an array is given, its library is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import _core
from .errors import InvalidArgumentError

# Calls a function of this package for arrays that need it: run(communicator, function, *arguments).
Run = Callable[..., Any]

_plain: set[type] = set()  # types that are no other library's


def runner_of(array: Any) -> Run | None:
    """Who makes a call with `array` (or a list of such); None: the core does."""
    if type(array) in _plain or getattr(array, "is_cpu", False):
        return None
    if isinstance(array, list | tuple):
        return runner_of(array[0]) if array else None
    if _is(array, "torch", "Tensor"):
        from . import _device

        return _device.runner_of(array)
    if _is(array, "jax", "Array"):
        return _run_on_jax
    if _is(array, "mindspore", "Tensor"):
        return _run_on_mindspore
    if len(_plain) < 64:  # a program that makes types without end shall not make this set so
        _plain.add(type(array))
    return None


def leave_devices() -> None:
    """Gives up what was made for tensors on a card, before the groups are left."""
    made = sys.modules.get(f"{__package__}._device_group")
    if made is not None:
        made.leave()


def _is(array: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(array, kind)


def _run_on_jax(_: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """JAX's arrays never change: the call works on copies in shared memory, which are the new arrays."""
    import jax

    def lent(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [lent(part) for part in value]
        if not isinstance(value, jax.Array):
            return value
        if isinstance(value, jax.core.Tracer):
            raise InvalidArgumentError(
                f"{function.__name__}: called while jax.jit or jax.grad traces the function around it, where "
                "arrays have no values yet; call it on what that function returns"
            )
        source = _Lent(value, value.__dlpack__)
        copy = _core.SharedArray(list(value.shape), _core.describe_array(source, False)[0])
        copy.copy_in(0, source)
        return copy

    def made(result: Any) -> Any:
        if isinstance(result, list | tuple):
            return [made(part) for part in result]
        return jax.numpy.from_dlpack(result) if isinstance(result, _core.SharedArray) else result

    return _translated(function(*map(lent, arguments), **keywords), made)


def _run_on_mindspore(_: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The tensors' own memory; new tensors where a call makes new arrays."""
    import mindspore

    given: dict[int, Any] = {}

    def lent(value: Any) -> Any:
        if isinstance(value, list | tuple):
            proxy = [lent(part) for part in value]
        elif isinstance(value, mindspore.Tensor):
            proxy = _mindspore_memory(function, value)
        else:
            return value
        given[id(proxy)] = value
        return proxy

    def made(result: Any) -> Any:
        if id(result) in given:
            return given[id(result)]
        if isinstance(result, _core.SharedArray):
            return _mindspore_copy(mindspore, result)
        return mindspore.Tensor.from_numpy(result) if hasattr(result, "__array__") else result

    proxies = [lent(value) for value in arguments]

    def result_of(result: Any, _: Any = proxies) -> Any:  # the proxies live on, as their ids are keys
        return made(result)

    return _translated(function(*proxies, **keywords), result_of)


def _mindspore_memory(function: Callable[..., Any], tensor: Any) -> Any:
    """An array of numpy's over it; of bfloat16, which numpy has not, by DLPack."""
    if not str(tensor.device).upper().startswith("CPU"):
        raise InvalidArgumentError(
            f"{function.__name__}: a MindSpore tensor lies on {tensor.device}; these collectives work on the "
            'host\'s memory. Give tensor.move_to("CPU"), or use mindspore.communication there'
        )
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"{function.__name__}: a MindSpore tensor is not contiguous; give its .contiguous()"
        )
    memory = tensor.asnumpy()
    return memory if memory.dtype.kind in "biufc" else _Lent(tensor, tensor.to_dlpack)


def _mindspore_copy(mindspore: Any, array: Any) -> Any:
    import numpy

    copy = mindspore.Tensor(numpy.zeros(array.shape, numpy.uint8), getattr(mindspore, array.dtype))
    array.copy_out(0, _Lent(copy, copy.to_dlpack))
    return copy


class _Lent:
    """The memory of another library's array."""

    def __init__(self, array: Any, capsule: Callable[[], Any]) -> None:
        self.shape, self._array, self._capsule = tuple(array.shape), array, capsule

    def __dlpack__(self) -> Any:
        return self._capsule()


def _translated(result: Any, made: Callable[[Any], Any]) -> Any:
    """What a call has returned, in the caller's own kind of arrays."""
    from ._api import Work

    if not isinstance(result, Work):
        return made(result)
    inner = result._result
    return Work(result._work, lambda: made(inner() if callable(inner) else inner))
