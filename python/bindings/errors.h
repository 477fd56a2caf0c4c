// The one place where a Status becomes an exception.
#pragma once

#include <utility>

#include <collective_ops/status.h>

namespace collective_ops::python {

// Throws the exception of collective_ops/errors.py that stands for the code. Needs the GIL.
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace collective_ops::python
