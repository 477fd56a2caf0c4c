#include "shared_array.h"

#include <cstring>
#include <string>

#include <fmt/format.h>
#include <pybind11/stl.h>

#include "errors.h"
#include "module.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

PyTypeObject* shared_array_type = nullptr;

// What a DLPack capsule owns.
struct Lent {
  std::shared_ptr<SharedBuffer> buffer;
  std::vector<int64_t> shape, strides;
  dlpack::ManagedTensor plain{};
  dlpack::VersionedTensor versioned{};
};

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

// A consumer renames the capsule and calls the deleter itself.
template <typename Managed>
void drop_capsule(PyObject* capsule) {
  const char* name = PyCapsule_GetName(capsule);
  if (name == nullptr || std::strncmp(name, "used_", 5) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

// Python's letter for a type. Types that it has no letter for appear as unsigned integers of their size.
std::string format_of(DataType type) {
  static constexpr const char* kFormats[kDataTypeCount] = {"b", "h", "i", "q", "B",  "H",  "I", "Q", "e",
                                                           "H", "f", "d", "?", "Zf", "Zd", "B", "B"};
  return kFormats[static_cast<size_t>(type)];
}

}  // namespace

SharedArray::SharedArray(std::shared_ptr<SharedBuffer> buffer, size_t byte_offset, std::vector<int64_t> shape,
                         DataType type)
    : buffer_(std::move(buffer)), byte_offset_(byte_offset), shape_(std::move(shape)), type_(type) {
  for (const int64_t extent : shape_) count_ *= static_cast<size_t>(extent);
}

SharedArray SharedArray::allocate(std::vector<int64_t> shape, DataType type) {
  size_t bytes = size_of(type);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) {
      raise({ErrorCode::kInvalidArgument,
             fmt::format("empty: a shape with {}: extents are not negative, and their product fits 64 bits",
                         extent)});
    }
  }
  auto buffer = [&] {
    const py::gil_scoped_release release;
    return Communicator::allocate(bytes);
  }();
  return {take(std::move(buffer)), 0, std::move(shape), type};
}

SharedArray SharedArray::slice(size_t first, size_t count) const {
  if (first > count_ || count > count_ - first) {
    raise({ErrorCode::kInvalidArgument,
           fmt::format("a slice of {} elements from {} on, of {}", count, first, count_)});
  }
  return {buffer_, byte_offset_ + first * size_of(type_), {static_cast<int64_t>(count)}, type_};
}

Array SharedArray::array() const {
  Array array;
  array.data = data();
  array.type = type_;
  array.count = count_;
  array.owner = buffer_;
  return array;
}

py::buffer_info SharedArray::buffer_info() const {
  const auto size = static_cast<py::ssize_t>(size_of(type_));
  std::vector<py::ssize_t> shape(shape_.begin(), shape_.end());
  std::vector<py::ssize_t> strides;
  for (const int64_t stride : row_major(shape_)) strides.push_back(stride * size);
  return {data(),           size,
          format_of(type_), static_cast<py::ssize_t>(shape.size()),
          std::move(shape), std::move(strides)};
}

py::capsule SharedArray::dlpack(bool versioned) const {
  auto* lent = new Lent{buffer_, shape_, row_major(shape_)};
  const dlpack::Tensor tensor{data(),
                              {dlpack::kCpu, 0},
                              static_cast<int32_t>(shape_.size()),
                              dlpack_type(type_),
                              lent->shape.data(),
                              lent->strides.data(),
                              0};
  if (versioned) {
    lent->versioned = {{1, 0},
                       lent,
                       [](dlpack::VersionedTensor* self) { delete static_cast<Lent*>(self->context); },
                       0,
                       tensor};
    return py::capsule(&lent->versioned, "dltensor_versioned", drop_capsule<dlpack::VersionedTensor>);
  }
  lent->plain = {tensor, lent, [](dlpack::ManagedTensor* self) { delete static_cast<Lent*>(self->context); }};
  return py::capsule(&lent->plain, "dltensor", drop_capsule<dlpack::ManagedTensor>);
}

const SharedArray* shared_array_of(py::handle object) {
  return Py_TYPE(object.ptr()) == shared_array_type ? object.cast<const SharedArray*>() : nullptr;
}

namespace {

DataType type_from(const std::string& name) {
  if (const auto type = data_type_from(name)) return *type;
  raise({ErrorCode::kUnsupportedType,
         fmt::format("\"{}\" is no element type; see collective_ops.data_types", name)});
}

// Large copies let other threads run.
template <typename Copy>
void copy_bytes(size_t bytes, const Copy& copy) {
  if (bytes < (size_t{1} << 16)) return copy();
  const py::gil_scoped_release release;
  copy();
}

std::byte* place(const SharedArray& self, size_t first, const Array& other) {
  if (other.type != self.type()) {
    raise({ErrorCode::kInvalidArgument, fmt::format("an array of {} does not go into memory of {}",
                                                    name_of(other.type), name_of(self.type()))});
  }
  return self.slice(first, other.count).data();
}

}  // namespace

void bind_shared_array(py::module_& module) {
  py::class_<SharedArray> type(
      module, "SharedArray", py::buffer_protocol(),
      "An array in memory that the ranks of this host share. numpy.asarray(a), "
      "numpy.from_dlpack(a), torch.from_dlpack(a) and memoryview(a) see the same memory.");
  type.def(py::init([](std::vector<int64_t> shape, const std::string& dtype) {
             return SharedArray::allocate(std::move(shape), type_from(dtype));
           }),
           py::arg("shape"), py::arg("dtype") = "float32")
      .def_property_readonly("shape",
                             [](const SharedArray& self) { return py::tuple(py::cast(self.shape())); })
      .def_property_readonly("dtype",
                             [](const SharedArray& self) { return std::string(name_of(self.type())); })
      .def_property_readonly("size", &SharedArray::count)
      .def_property_readonly("nbytes",
                             [](const SharedArray& self) { return self.count() * size_of(self.type()); })
      .def_property_readonly("address",
                             [](const SharedArray& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def("slice", &SharedArray::slice, py::arg("first"), py::arg("count"),
           "One dimension: `count` elements from `first` on, in the same memory.")
      .def(
          "copy_in",
          [](const SharedArray& self, size_t first, py::handle source) {
            const Array array = array_from(source, Access::kRead, "the array");
            std::byte* there = place(self, first, array);
            copy_bytes(array.bytes(), [&] { pack(array, there); });
            return array.count;
          },
          py::arg("first"), py::arg("source"),
          "Copies `source`, row-major, to the elements from `first` on; their number.")
      .def(
          "copy_out",
          [](const SharedArray& self, size_t first, py::handle target) {
            const Array array = array_from(target, Access::kWrite, "the array");
            const std::byte* there = place(self, first, array);
            copy_bytes(array.bytes(), [&] { unpack(there, array); });
            return array.count;
          },
          py::arg("first"), py::arg("target"),
          "Fills `target`, row-major, from the elements from `first` on; their number.")
      .def("zero",
           [](const SharedArray& self) { std::memset(self.data(), 0, self.count() * size_of(self.type())); })
      .def("__len__",
           [](const SharedArray& self) {
             if (self.shape().empty()) throw py::type_error("len() of an array without dimensions");
             return self.shape()[0];
           })
      .def("__dlpack_device__", [](const SharedArray&) { return py::make_tuple(int{dlpack::kCpu}, 0); })
      .def(
          "__dlpack__",
          [](const SharedArray& self, const py::object&, const py::object& max_version, const py::object&,
             const py::object& copy) {
            if (!copy.is_none() && copy.cast<bool>())
              throw py::buffer_error("a SharedArray lends its memory; it makes no copy");
            return self.dlpack(!max_version.is_none() &&
                               max_version.cast<py::sequence>()[0].cast<int>() >= 1);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def_buffer(&SharedArray::buffer_info)
      .def("__repr__", [](const SharedArray& self) {
        return py::str("SharedArray(shape={}, dtype='{}')")
            .format(py::tuple(py::cast(self.shape())), std::string(name_of(self.type())));
      });
  shared_array_type = reinterpret_cast<PyTypeObject*>(type.ptr());
}

}  // namespace collective_ops::python
