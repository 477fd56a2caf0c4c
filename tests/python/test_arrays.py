"""Arrays as they come: what a call sees of tensors, numpy arrays and buffers, and shared memory itself."""

from __future__ import annotations

import array
import gc
from typing import Any

import collective_ops
import numpy as np
import pytest
from collective_ops import InvalidArgumentError, UnsupportedTypeError, _core
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import storage

torch = pytest.importorskip("torch")

TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}


def torch_type(dtype: str) -> Any:
    return getattr(torch, TORCH_NAMES.get(dtype, dtype))


class OnlyDLPack:
    """What a library offers that has no exchange API and no buffer protocol."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._source.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


@pytest.mark.parametrize("dtype", collective_ops.data_types)
def test_torch_types(dtype: str) -> None:
    tensor = torch.zeros(2, 3, dtype=torch_type(dtype))
    assert _core.describe_array(tensor) == (dtype, 6, True)
    assert _core.describe_array(OnlyDLPack(tensor)) == (dtype, 6, True)


@pytest.mark.parametrize("dtype", [t for t in collective_ops.data_types if storage(t).name == t])
def test_numpy_types(dtype: str) -> None:
    assert _core.describe_array(np.zeros((2, 3), dtype)) == (dtype, 6, True)
    assert _core.describe_array(memoryview(np.zeros((2, 3), dtype))) == (dtype, 6, True)


def test_other_buffers() -> None:
    assert _core.describe_array(array.array("d", [1, 2])) == ("float64", 2, True)
    assert _core.describe_array(bytearray(5)) == ("uint8", 5, True)
    assert _core.describe_array(np.zeros((), np.int16)) == ("int16", 1, True)
    assert _core.describe_array(np.zeros((0, 4))) == ("float64", 0, True)
    assert _core.describe_array(np.zeros((4, 4))[:, :2]) == ("float64", 8, False)
    assert _core.describe_array(np.zeros(4, ">f4"[1:])) == ("float32", 4, True)


def test_torch_shapes() -> None:
    assert _core.describe_array(torch.tensor(1.0)) == ("float32", 1, True)
    assert _core.describe_array(torch.empty(0, 3)) == ("float32", 0, True)
    assert _core.describe_array(torch.zeros(2, 3).T) == ("float32", 6, False)
    assert _core.describe_array(torch.zeros(5, 1)[:, 0]) == ("float32", 5, True)
    leaf = torch.nn.Parameter(torch.zeros(3))
    assert _core.describe_array(leaf) == ("float32", 3, True)
    assert _core.describe_array(leaf * 2) == ("float32", 3, True)
    assert _core.describe_array(OnlyDLPack(leaf.detach())) == ("float32", 3, True)


def read_only() -> np.ndarray:
    values = np.zeros(3)
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: None, InvalidArgumentError, "no gradient: skip it"),
        (lambda: [1.0, 2.0], InvalidArgumentError, "is a list, which is no array"),
        (lambda: 3.0, InvalidArgumentError, "is a float, which is no array"),
        (lambda: b"123", InvalidArgumentError, "read-only"),
        (read_only, InvalidArgumentError, "read-only"),
        (lambda: torch.zeros(1).expand(4), InvalidArgumentError, "share memory"),
        (lambda: torch.zeros(9).as_strided((3, 3), (2, 2)), InvalidArgumentError, "share memory"),
        (lambda: torch.zeros(2, device="meta"), InvalidArgumentError, "meta"),
        (lambda: torch.zeros(3).to_sparse(), InvalidArgumentError, "to_dense"),
        (lambda: torch.zeros(2, dtype=torch.cfloat).conj(), InvalidArgumentError, "resolve_conj"),
        (lambda: torch.zeros(2, dtype=torch.cfloat).conj().imag, InvalidArgumentError, "resolve_neg"),
        (lambda: torch.zeros(1, dtype=torch.cfloat).conj().imag, InvalidArgumentError, "resolve_neg"),
        (lambda: torch.zeros((), dtype=torch.cfloat).conj().imag, InvalidArgumentError, "resolve_neg"),
        (lambda: np.zeros(3, ">f4"), UnsupportedTypeError, "'>f'"),
        (lambda: np.zeros(3, "f4,i4"), UnsupportedTypeError, "not supported"),
        (lambda: np.zeros(3, "M8[s]"), InvalidArgumentError, "cannot be used"),
        (lambda: torch.zeros(2, dtype=torch.float8_e4m3fnuz), UnsupportedTypeError, "not supported"),
    ],
)
def test_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _core.describe_array(make())


def test_read_only_is_fine_for_inputs() -> None:
    assert _core.describe_array(b"123", False) == ("uint8", 3, True)
    assert _core.describe_array(torch.zeros(1).expand(4), False) == ("float32", 4, False)


class OnDevice:
    """An array of another device, as its library would lend it: the number in front is all that is read."""

    def __init__(self, device_type: int) -> None:
        self._device_type = device_type

    def __dlpack__(self) -> Any:
        import ctypes

        capsule = np.zeros(2).__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # DLTensor: a pointer, then the device's type
        ctypes.c_int32.from_address(address(capsule, b"dltensor") + 8).value = self._device_type
        return capsule


@pytest.mark.parametrize(
    ("device_type", "text"), [(2, "cuda:0.*nccl"), (12, "npu:0.*hccl"), (8, "mps:0"), (77, "accel")]
)
def test_memory_of_a_device_is_named(device_type: int, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        _core.describe_array(OnDevice(device_type))


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """A view into a larger array: dimensions permuted, steps of either sign, broadcasting none."""
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in shape]
    dtype = draw(st.sampled_from(["uint8", "int16", "float32", "float64", "complex128"]))
    base = np.arange(int(np.prod([n * abs(s) for n, s in zip(shape, steps, strict=True)]))).astype(dtype)
    base = base.reshape([n * abs(s) for n, s in zip(shape, steps, strict=True)])
    view = base[(..., *(slice(None, None, s) for s in steps))]  # ...: an array also without dimensions
    return view.transpose(draw(st.permutations(range(len(shape)))))


@given(strided(), st.integers(0, 5))
@settings(deadline=None, max_examples=200)
def test_copies_follow_any_strides(view: np.ndarray, first: int) -> None:
    shared = _core.SharedArray([first + view.size + 3], view.dtype.name)
    memory = np.asarray(shared)
    memory[:] = 77
    assert shared.copy_in(first, view) == view.size
    np.testing.assert_array_equal(memory[first : first + view.size], view.reshape(-1))
    assert (memory[:first] == 77).all() and (memory[first + view.size :] == 77).all()

    memory[first : first + view.size] = memory[first : first + view.size][::-1].copy()
    expected = memory[first : first + view.size].reshape(view.shape).copy()
    assert shared.copy_out(first, view) == view.size
    np.testing.assert_array_equal(view, expected)


def test_copies_stay_inside() -> None:
    shared = _core.SharedArray([4], "float32")
    with pytest.raises(InvalidArgumentError, match="a slice of 3 elements from 2 on, of 4"):
        shared.copy_in(2, np.zeros(3, np.float32))
    with pytest.raises(InvalidArgumentError, match="float64 does not go into memory of float32"):
        shared.copy_in(0, np.zeros(2))
    with pytest.raises(InvalidArgumentError, match="a slice"):
        shared.slice(5, 0)


@pytest.mark.parametrize("dtype", collective_ops.data_types)
def test_shared_array_is_seen_by_torch_and_numpy(dtype: str) -> None:
    shared = _core.SharedArray([2, 3], dtype)
    assert (shared.shape, shared.dtype, shared.size, len(shared)) == ((2, 3), dtype, 6, 2)
    assert shared.nbytes == 6 * storage(dtype).itemsize
    tensor = torch.from_dlpack(shared)
    assert (tensor.shape, tensor.dtype, tensor.data_ptr()) == ((2, 3), torch_type(dtype), shared.address)
    view = np.asarray(shared)
    assert (view.shape, view.dtype, view.ctypes.data) == ((2, 3), storage(dtype), shared.address)
    view.view(np.uint8)[:] = 1
    assert (tensor.view(torch.uint8) == 1).all()
    if storage(dtype).name == dtype:
        assert np.from_dlpack(shared).ctypes.data == shared.address


def test_shared_memory_lives_as_long_as_a_view() -> None:
    for view_of in (np.asarray, torch.from_dlpack, np.from_dlpack, memoryview, lambda a: a.slice(10, 20)):
        shared = _core.SharedArray([100_000], "float32")
        np.asarray(shared)[:] = 5
        view = view_of(shared)
        del shared
        gc.collect()
        other = _core.SharedArray([100_000], "float32")  # would take the place, were it free
        np.asarray(other)[:] = 6
        assert float(np.asarray(view)[0]) == 5


def test_shared_memory_is_given_back() -> None:
    def once() -> int:
        shared = _core.SharedArray([1 << 18], "float32")
        torch.from_dlpack(shared), np.asarray(shared), memoryview(shared)
        shared.__dlpack__(), shared.__dlpack__(max_version=(1, 0))  # capsules that nobody takes
        return shared.address

    first = once()
    assert {once() for _ in range(50)} == {first}


def test_empty() -> None:
    tensor = collective_ops.empty((2, 3), torch.bfloat16)
    assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.bfloat16 and tensor.shape == (2, 3)
    assert collective_ops.empty(4).shape == (4,)
    assert collective_ops.empty(()).shape == ()
    assert collective_ops.empty((0, 2), "int8").shape == (0, 2)
    for dtype in ("float64", np.float64, np.dtype("float64"), torch.float64, torch.double):
        assert collective_ops.empty(1, dtype).dtype == torch.float64
    assert collective_ops.empty(1, torch.float8_e4m3fn).dtype == torch.float8_e4m3fn
    assert collective_ops.empty(1, bool).dtype == torch.bool
    with pytest.raises(UnsupportedTypeError, match="'f4' is not one of int8"):
        collective_ops.empty(1, "f4")
    with pytest.raises(InvalidArgumentError, match="a shape with -1"):
        collective_ops.empty((2, -1))
    with pytest.raises(InvalidArgumentError, match="fits 64 bits"):
        collective_ops.empty((1 << 40, 1 << 40))
    with pytest.raises(collective_ops.OutOfMemoryError):
        collective_ops.empty(1 << 45)


def test_errors_are_python_errors_too() -> None:
    for error, base in {
        "InvalidArgumentError": ValueError,
        "UnsupportedTypeError": TypeError,
        "CollectiveTimeoutError": TimeoutError,
        "OutOfMemoryError": MemoryError,
        "SystemCallError": OSError,
    }.items():
        assert issubclass(getattr(collective_ops, error), (base, RuntimeError))
        assert issubclass(getattr(collective_ops, error), base)


def test_every_code_has_its_exception() -> None:
    from collective_ops import errors

    for code in _core.error_codes:
        kind = errors.error_type(code)
        assert kind.code == code
        assert kind.__name__ in collective_ops.__all__
