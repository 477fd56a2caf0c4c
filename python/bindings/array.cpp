#include "array.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "errors.h"
#include "shared_array.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

constexpr dlpack::ElementType kTypes[kDataTypeCount] = {
    {dlpack::kInt, 8, 1},          {dlpack::kInt, 16, 1},       {dlpack::kInt, 32, 1},
    {dlpack::kInt, 64, 1},         {dlpack::kUInt, 8, 1},       {dlpack::kUInt, 16, 1},
    {dlpack::kUInt, 32, 1},        {dlpack::kUInt, 64, 1},      {dlpack::kFloat, 16, 1},
    {dlpack::kBfloat, 16, 1},      {dlpack::kFloat, 32, 1},     {dlpack::kFloat, 64, 1},
    {dlpack::kBool, 8, 1},         {dlpack::kComplex, 64, 1},   {dlpack::kComplex, 128, 1},
    {dlpack::kFloat8E4M3fn, 8, 1}, {dlpack::kFloat8E5M2, 8, 1},
};

[[noreturn]] void invalid(std::string text) { raise({ErrorCode::kInvalidArgument, std::move(text)}); }

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

DataType type_of(dlpack::ElementType type, std::string_view name) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto& known = kTypes[i];
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1)
      return static_cast<DataType>(i);
  }
  raise({ErrorCode::kUnsupportedType,
         fmt::format("{}: elements with DLPack code {}, {} bits, {} lanes are not supported; see "
                     "collective_ops.data_types",
                     name, type.code, type.bits, type.lanes)});
}

void check_device(dlpack::Device device, std::string_view name) {
  if (device.type == dlpack::kCpu || device.type == dlpack::kCudaHost || device.type == dlpack::kRocmHost)
    return;
  const char* kind = "an accelerator";
  const char* library = "its vendor's backend";
  if (device.type == dlpack::kCuda) kind = "cuda", library = "backend=\"nccl\"";
  if (device.type == dlpack::kRocm) kind = "rocm", library = "backend=\"nccl\"";
  if (device.type == dlpack::kExtension) kind = "npu", library = "backend=\"hccl\"";
  if (device.type == dlpack::kMetal) kind = "mps";
  if (device.type == dlpack::kOneApi) kind = "xpu";
  invalid(
      fmt::format("{} lies in the memory of {}:{}; these collectives work on the host's memory. Move it with "
                  ".cpu() and back, or use torch.distributed.init_process_group({})",
                  name, kind, device.id, library));
}

// The shape and strides of an array, whatever described it. `strides` null: contiguous.
void set_layout(Array& array, std::span<const int64_t> shape, const int64_t* strides) {
  array.count = 1;
  for (const int64_t extent : shape) array.count *= static_cast<size_t>(extent);
  if (strides == nullptr || array.count == 0) return;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) array.contiguous = false;
    expected *= shape[i];
  }
  if (array.contiguous) return;
  array.shape.assign(shape.begin(), shape.end());
  array.strides.assign(strides, strides + shape.size());
}

void set_tensor(Array& array, const dlpack::Tensor& tensor, std::string_view name) {
  check_device(tensor.device, name);
  array.type = type_of(tensor.dtype, name);
  array.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  set_layout(array, {tensor.shape, static_cast<size_t>(tensor.ndim)}, tensor.strides);
  if (array.count != 0 && tensor.data == nullptr)
    invalid(fmt::format("{} has no memory (a fake or wrapped tensor)", name));
}

// PyTorch's complex tensors may be conjugated, and real ones negated, by a flag that DLPack does not
// carry; the numbers in memory are then not those that the user sees.
void check_lazy_flags(py::handle object, const dlpack::Tensor& tensor, const Array& array,
                      std::string_view name) {
  const bool complex = array.type == DataType::kComplex64 || array.type == DataType::kComplex128;
  // Only a view of every second element can be negated.
  const bool every_second =
      tensor.ndim > 0 && tensor.strides != nullptr && tensor.strides[tensor.ndim - 1] != 1;
  const bool zero_dim_view =
      tensor.ndim == 0 && (array.type == DataType::kFloat32 || array.type == DataType::kFloat64);
  for (const char* flag : {"is_conj", "is_neg"}) {
    const bool possible = flag[3] == 'c' ? complex : complex || every_second || zero_dim_view;
    if (!possible || !py::hasattr(object, flag) || !object.attr(flag)().cast<bool>()) continue;
    invalid(fmt::format("{} is a lazily {} tensor; give its .resolve_{}()", name,
                        flag[3] == 'c' ? "conjugated" : "negated", flag + 3));
  }
}

std::shared_ptr<void> keep(py::handle object) {
  return {object.inc_ref().ptr(), [](void* p) { py::handle(static_cast<PyObject*>(p)).dec_ref(); }};
}

// Looked up once per type. Types are kept alive, so that an address never comes to mean another one.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static auto* cache = new std::vector<std::pair<PyTypeObject*, const dlpack::ExchangeApi*>>();
  for (const auto& [known, api] : *cache) {
    if (known == type) return api;
  }
  const dlpack::ExchangeApi* api = nullptr;
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  if (py::hasattr(handle, "__dlpack_c_exchange_api__")) {
    const py::object capsule = handle.attr("__dlpack_c_exchange_api__");
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
      api =
          static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    }
    while (api != nullptr && api->version.major != 1) api = api->previous;
  }
  // A program that makes types without end shall not make this list so.
  if (cache->size() < 64) {
    Py_INCREF(type);
    cache->emplace_back(type, api);
  }
  return api;
}

// An error of the array's own library, in its words where the reason is none of those known here.
[[noreturn]] void refused(std::string_view name, py::handle object) {
  py::error_already_set cause;
  const auto is = [&](const char* flag) {
    return py::hasattr(object, flag) && py::bool_(object.attr(flag)).cast<bool>();
  };
  if (is("is_sparse") || is("is_sparse_csr")) {
    invalid(fmt::format(
        "{} is a sparse tensor; give its .to_dense(), or make gradients dense: Embedding(sparse=False)",
        name));
  }
  if (is("is_meta")) invalid(fmt::format("{} is a meta tensor, which has no memory", name));
  std::string reason = py::str(cause.value());
  reason = reason.substr(0, reason.find('\n'));
  invalid(fmt::format("{}: the memory of this {} cannot be used: {}", name, type_name(object), reason));
}

std::optional<DataType> type_of_format(const char* format, size_t size) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && std::string_view("@=<").find(text[0]) != std::string_view::npos) text.remove_prefix(1);
  const auto of_width = [&](DataType first) {
    const int steps = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    return static_cast<DataType>(static_cast<int>(first) + steps);
  };
  if (text == "Zf") return DataType::kComplex64;
  if (text == "Zd") return DataType::kComplex128;
  if (text.size() != 1) return std::nullopt;
  if (std::strchr("bhilqn", text[0]) != nullptr) return of_width(DataType::kInt8);
  if (std::strchr("BHILQN", text[0]) != nullptr) return of_width(DataType::kUInt8);
  switch (text[0]) {
    case 'e':
      return DataType::kFloat16;
    case 'f':
      return DataType::kFloat32;
    case 'd':
      return DataType::kFloat64;
    case '?':
      return DataType::kBool;
    default:
      return std::nullopt;
  }
}

Array from_buffer(py::handle object, std::string_view name) {
  auto* buffer = new Py_buffer{};
  if (PyObject_GetBuffer(object.ptr(), buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    delete buffer;
    refused(name, object);
  }
  Array array;
  array.owner = std::shared_ptr<void>(buffer, [](void* p) {
    PyBuffer_Release(static_cast<Py_buffer*>(p));
    delete static_cast<Py_buffer*>(p);
  });
  const auto type = type_of_format(buffer->format, static_cast<size_t>(buffer->itemsize));
  if (!type) {
    raise({ErrorCode::kUnsupportedType,
           fmt::format("{}: elements of buffer format '{}' are not supported; see collective_ops.data_types",
                       name, buffer->format)});
  }
  array.type = *type;
  array.data = static_cast<std::byte*>(buffer->buf);
  array.read_only = buffer->readonly != 0;
  std::vector<int64_t> strides(buffer->strides, buffer->strides + buffer->ndim);
  for (int64_t& stride : strides) {
    if (stride % buffer->itemsize != 0)
      invalid(fmt::format("{}: elements at addresses that are no multiple of their size", name));
    stride /= buffer->itemsize;
  }
  const std::vector<int64_t> shape(buffer->shape, buffer->shape + buffer->ndim);
  set_layout(array, shape, strides.data());
  return array;
}

Array from_capsule(py::handle object, std::string_view name) {
  py::object source = py::reinterpret_borrow<py::object>(object);
  if (py::hasattr(object, "requires_grad") && py::bool_(object.attr("requires_grad")))
    source = object.attr("detach")();
  PyObject* made = PyObject_CallMethod(source.ptr(), "__dlpack__", nullptr);
  if (made == nullptr) refused(name, object);
  const auto capsule = py::reinterpret_steal<py::object>(made);
  Array array;
  array.owner = keep(capsule);  // not consumed: its own destructor gives the memory back
  if (PyCapsule_IsValid(made, "dltensor") != 0) {
    set_tensor(array, static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(made, "dltensor"))->tensor,
               name);
  } else if (PyCapsule_IsValid(made, "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(made, "dltensor_versioned"));
    if (managed->version.major != 1)
      invalid(fmt::format("{}: DLPack version {} is not known", name, managed->version.major));
    array.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    set_tensor(array, managed->tensor, name);
  } else {
    invalid(fmt::format("{}: __dlpack__ of this {} returned something else than a DLPack capsule", name,
                        type_name(object)));
  }
  return array;
}

Array read(py::handle object, std::string_view name) {
  if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()))) {
    dlpack::Tensor tensor;
    if (api->describe(object.ptr(), &tensor) != 0) refused(name, object);
    Array array;
    set_tensor(array, tensor, name);
    check_lazy_flags(object, tensor, array, name);
    array.owner = keep(object);
    return array;
  }
  if (const SharedArray* shared = shared_array_of(object)) return shared->array();
  if (PyObject_CheckBuffer(object.ptr()) != 0) return from_buffer(object, name);
  if (py::hasattr(object, "__dlpack__")) return from_capsule(object, name);
  if (object.is_none()) {
    invalid(fmt::format(
        "{} is None. A parameter that took no part in this step has no gradient: skip it, on all ranks "
        "alike (if param.grad is not None: ...)",
        name));
  }
  invalid(fmt::format(
      "{} is a {}, which is no array: give a tensor, a numpy array, or anything with DLPack or the "
      "buffer protocol",
      name, type_name(object)));
}

// Sufficient, not necessary: sorted by stride, each dimension steps over all that lies below it.
bool may_overlap(const Array& array) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, extent
  for (size_t i = 0; i < array.shape.size(); ++i) {
    if (array.shape[i] > 1) dimensions.emplace_back(std::abs(array.strides[i]), array.shape[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t last = 0;
  for (const auto& [stride, extent] : dimensions) {
    if (stride <= last) return true;
    last += (extent - 1) * stride;
  }
  return false;
}

}  // namespace

dlpack::ElementType dlpack_type(DataType type) { return kTypes[static_cast<size_t>(type)]; }

Array array_from(py::handle object, Access access, std::string_view name) {
  Array array = read(object, name);
  if (access == Access::kRead) return array;
  if (array.read_only)
    invalid(fmt::format("{} is read-only, but the result is written into it; give a writable copy", name));
  if (!array.contiguous && may_overlap(array)) {
    invalid(fmt::format(
        "{} has elements that share memory (an expanded tensor?), but each gets a result of its own; give "
        "a copy, such as .contiguous() or .clone()",
        name));
  }
  return array;
}

}  // namespace collective_ops::python
