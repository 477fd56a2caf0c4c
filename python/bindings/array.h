// Memory of a Python array, borrowed for a call: a tensor by DLPack, or anything with the buffer
// protocol. Nothing here needs PyTorch or numpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <pybind11/pybind11.h>

#include <collective_ops/types.h>

#include "dlpack_abi.h"

namespace collective_ops::python {

// The memory stays valid while `owner` lives.
struct Array {
  std::byte* data = nullptr;
  DataType type = DataType::kUInt8;
  size_t count = 0;  // elements
  bool contiguous = true;
  bool read_only = false;
  std::vector<int64_t> shape, strides;  // in elements; filled only where not contiguous
  std::shared_ptr<void> owner;

  size_t bytes() const { return count * size_of(type); }
};

enum class Access : uint8_t { kRead, kWrite };

// `name` is the argument's, for messages. Raises InvalidArgumentError (None, memory of a device, no array;
// where written to: read-only or elements that share memory) and UnsupportedTypeError.
Array array_from(pybind11::handle object, Access access, std::string_view name);

dlpack::ElementType dlpack_type(DataType type);

// Copies between an array of any strides and packed memory of the same elements in row-major order.
void pack(const Array& array, std::byte* packed);
void unpack(const std::byte* packed, const Array& array);

}  // namespace collective_ops::python
