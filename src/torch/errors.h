// A Status as PyTorch's exceptions, which its bindings turn into Python's.
#pragma once

#include <exception>
#include <string>

#include <collective_ops/status.h>

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

// ValueError and TypeError for arguments, OutOfMemoryError, else DistBackendError; `call` comes first in the
// text where the status does not name it. Where a signal's handler raised, its own exception.
[[noreturn]] void raise(const Status& status);
std::exception_ptr to_exception(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

// While it lives, long waits of this thread let the handlers of signals run (in the main thread, as always);
// without it a thread never asks for the GIL.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  bool before_;
};

// Of this thread: what Interruptible sets.
bool& interruptible();

// Lets go of the GIL, where this thread has it: waits may be long, and need a thread that asks for it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

// What a communicator calls during long waits.
Status look_for_signals();

}  // namespace collective_ops::pytorch
