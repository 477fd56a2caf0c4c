// How a group of ranks goes from one of this library's Python modules to another: those of collective_ops and
// of collective_ops_torch are compiled with different versions of pybind11, so a capsule carries it.
#pragma once

#include <memory>

#include <collective_ops/communicator.h>

namespace collective_ops {

struct SharedGroup {
  static constexpr const char* kCapsule = "collective_ops.SharedGroup";

  std::shared_ptr<Communicator> communicator;
  // Of the calling thread: whether its waits in this group may take the GIL to let handlers of signals run.
  bool& (*interruptible)() = nullptr;
};

}  // namespace collective_ops
