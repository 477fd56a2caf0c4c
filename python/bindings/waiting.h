// Waiting without the GIL, and Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <collective_ops/status.h>

namespace collective_ops::python {

// Releases the GIL, and lets signals' handlers run during long waits (in the main thread, as always).
class Wait {
 public:
  Wait();
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  PyThreadState* state_;
};

// From now on Wait sets this flag of its thread, too: a group of another module asks that one's.
void also_interruptible(bool& (*flag)());

// What a communicator asks while it waits: whether a signal's handler has raised.
Status look_for_signals();

// While it lives, long waits of this thread call `function`, some twenty times a second, with the GIL. What
// that raises ends the wait. `function` may be None.
class WhileWaiting {
 public:
  explicit WhileWaiting(pybind11::handle function);
  ~WhileWaiting();
  WhileWaiting(const WhileWaiting&) = delete;
  WhileWaiting& operator=(const WhileWaiting&) = delete;
};

}  // namespace collective_ops::python
