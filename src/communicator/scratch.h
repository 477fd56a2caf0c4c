// Memory that grows to the most that was asked of it, and is kept: one call's partial results. Aligned to a
// cache line; what it held is lost when it grows.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace collective_ops {

class Scratch {
 public:
  std::byte* get(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_)));
      if (memory_ == nullptr) {
        bytes_ = 0;
        throw std::bad_alloc();  // becomes kOutOfMemory where calls begin: CallQueue
      }
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace collective_ops
