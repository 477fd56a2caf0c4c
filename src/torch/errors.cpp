#include "torch/errors.h"

#include <chrono>

namespace collective_ops::pytorch {
namespace {

// How often a long wait takes the GIL to look for signals.
constexpr auto kSignalPeriod = std::chrono::milliseconds(50);

thread_local std::chrono::steady_clock::time_point next_look;

bool python_ends() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

bool& interruptible() {
  thread_local bool flag = false;
  return flag;
}

Interruptible::Interruptible() : before_(std::exchange(interruptible(), true)) {}
Interruptible::~Interruptible() { interruptible() = before_; }

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
}
WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(state_);
}

Status look_for_signals() {
  if (!interruptible() || python_ends() || Py_IsInitialized() == 0) return {};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look) return {};
  next_look = now + kSignalPeriod;
  const pybind11::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return {};
  return {ErrorCode::kInterrupted, "a signal's handler ended the wait"};  // its exception is what Python sees
}

void raise(const Status& status) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  const std::string& text = status.message();
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
      throw c10::ValueError(here, text);
    case ErrorCode::kUnsupportedType:
      throw c10::TypeError(here, text);
    case ErrorCode::kOutOfMemory:
      throw c10::OutOfMemoryError(here, text);
    case ErrorCode::kInterrupted: {
      const pybind11::gil_scoped_acquire acquire;
      if (PyErr_Occurred() == nullptr) break;
      python_error error;
      error.persist();
      throw error;
    }
    default:
      break;
  }
  throw c10::DistBackendError(here, text);
}

std::exception_ptr to_exception(const Status& status) {
  try {
    raise(status);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace collective_ops::pytorch
