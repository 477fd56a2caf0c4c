// The arrays of a call, and calls that were started.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <pybind11/pybind11.h>

#include <collective_ops/communicator.h>

#include "arguments.h"
#include "array.h"
#include "errors.h"
#include "waiting.h"

namespace collective_ops::python {

// An argument of a call: the array itself where it is contiguous, else a packed copy of it.
class Operand {
 public:
  Operand(pybind11::handle object, Access access, std::string_view name)
      : array_(array_from(object, access, name)) {
    if (array_.contiguous) return;
    packed_ = std::make_unique<std::byte[]>(array_.bytes());
    writes_back_ = access == Access::kWrite;
  }
  void pack_if_needed() const {
    if (packed_) pack(array_, packed_.get());
  }
  void unpack_if_needed() {
    if (std::exchange(writes_back_, false)) unpack(packed_.get(), array_);
  }
  void* pointer() const { return packed_ ? packed_.get() : array_.data; }
  const Array& array() const { return array_; }

 private:
  Array array_;
  std::unique_ptr<std::byte[]> packed_;
  bool writes_back_ = false;
};

// In place: `recv` alone.
struct Operands {
  std::optional<Operand> send;
  std::optional<Operand> recv;
};

class PendingWork {
 public:
  PendingWork(std::shared_ptr<Work> work, Operands operands)
      : work_(std::move(work)), operands_(std::move(operands)) {}

  void wait(pybind11::handle timeout) {
    auto limit = milliseconds_from(timeout);
    if (limit && limit->count() == 0) limit.reset();  // 0: for ever, as in every call
    const Status status = [&] {
      const Wait released;
      return work_->wait(limit);
    }();
    check(status);
    deliver();
  }
  // The result of a finished call into an array that is not contiguous; also where nobody waits.
  void deliver() {
    if (work_->done() && operands_.recv && work_->wait().ok()) operands_.recv->unpack_if_needed();
  }
  bool done() const { return work_->done(); }
  // The rank of the group that a finished receive took a message from; None of anything else.
  std::optional<int> source() const {
    const auto received = work_->received();
    return received ? std::optional(received->source) : std::nullopt;
  }

 private:
  std::shared_ptr<Work> work_;
  Operands operands_;
};

using MaybeWork = std::shared_ptr<PendingWork>;

}  // namespace collective_ops::python
