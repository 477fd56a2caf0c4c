// An array in memory that the ranks of this host share: what `empty` gives without PyTorch, and what
// buckets are made of. It lends its memory by DLPack and by the buffer protocol.
#pragma once

#include <memory>
#include <vector>

#include <pybind11/pybind11.h>

#include <collective_ops/communicator.h>

#include "array.h"

namespace collective_ops::python {

class SharedArray {
 public:
  SharedArray(std::shared_ptr<SharedBuffer> buffer, size_t byte_offset, std::vector<int64_t> shape,
              DataType type);
  static SharedArray allocate(std::vector<int64_t> shape, DataType type);

  // One dimension: `count` elements from `first` on, in the same memory.
  SharedArray slice(size_t first, size_t count) const;
  Array array() const;
  pybind11::buffer_info buffer_info() const;
  // A capsule; "dltensor_versioned" where `versioned`.
  pybind11::capsule dlpack(bool versioned) const;

  const std::vector<int64_t>& shape() const { return shape_; }
  DataType type() const { return type_; }
  size_t count() const { return count_; }
  std::byte* data() const { return static_cast<std::byte*>(buffer_->data()) + byte_offset_; }

 private:
  std::shared_ptr<SharedBuffer> buffer_;
  size_t byte_offset_;
  std::vector<int64_t> shape_;
  size_t count_ = 1;
  DataType type_;
};

// Null where `object` is of another type.
const SharedArray* shared_array_of(pybind11::handle object);

}  // namespace collective_ops::python
