// Status and Result<T>: how every function below the C and Python APIs reports failure.
// A status says what was being done, with whom, and what to do next; docs/errors.md lists the codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace collective_ops {

enum class ErrorCode : uint8_t {
  kOk = 0,
  kInvalidArgument,  // a caller's value cannot be used
  kUnsupportedType,  // this element type cannot be reduced by this operation
  kMismatch,         // ranks made different calls
  kTimeout,          // a deadline passed
  kPeerLost,         // a rank died or left in the middle
  kGroupBroken,      // an earlier failure made the group unusable
  kOutOfMemory,      // shared memory does not fit in the limits found
  kRendezvous,       // ranks could not form a group (missing rank, differing world size)
  kDuplicateRank,    // a second live process claims a rank
  kVersionMismatch,  // ranks run different builds
  kNotInitialized,   // no communicator yet, or a child after fork
  kSystem,           // a system call failed; the text names it
  kInternal,         // a defect of this library
  kInterrupted,      // a signal or the caller's own check ended a wait
};
inline constexpr int kErrorCodeCount = 15;

std::string_view name_of(ErrorCode code);  // "mismatch", "peer_lost" ...

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

// A value, or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace collective_ops
