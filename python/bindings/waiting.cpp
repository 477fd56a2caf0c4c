#include "waiting.h"

#include <atomic>
#include <chrono>

#include <unistd.h>

namespace py = pybind11;

namespace collective_ops::python {
namespace {

// How often a long wait takes the GIL to look for signals.
constexpr auto kSignalPeriod = std::chrono::milliseconds(50);

// True while this thread is inside Wait, so that the group's own thread never asks for the GIL.
thread_local bool waits_for_python = false;
thread_local std::chrono::steady_clock::time_point next_look;
thread_local py::handle while_waiting;  // of WhileWaiting

std::atomic<bool& (*)()> other_flag{nullptr};  // of also_interruptible

void set_interruptible(bool on) {
  waits_for_python = on;
  if (const auto other = other_flag.load(std::memory_order_relaxed)) other() = on;
}

// A thread that asks for the GIL while the interpreter ends would be ended by unwinding, through frames that
// allow none: the process would abort. Such a thread (a daemon thread in a call) stays here instead.
bool python_ends() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Not for the thread that ends it, which leaves groups on its way.
thread_local bool ends_python = false;
void stay_if_python_ends() {
  while (!ends_python && python_ends()) pause();
}

}  // namespace

Wait::Wait() {
  ends_python = python_ends();  // who holds the GIL then is the thread that ends it
  state_ = PyEval_SaveThread();
  set_interruptible(true);
}

Wait::~Wait() {
  set_interruptible(false);
  stay_if_python_ends();
  PyEval_RestoreThread(state_);
}

void also_interruptible(bool& (*flag)()) { other_flag.store(flag); }

Status look_for_signals() {
  if (!waits_for_python) return {};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look) return {};
  next_look = now + kSignalPeriod;
  stay_if_python_ends();
  const py::gil_scoped_acquire acquire;
  bool raised = PyErr_CheckSignals() != 0;
  if (!raised && while_waiting && !while_waiting.is_none()) {
    PyObject* result = PyObject_CallNoArgs(while_waiting.ptr());
    raised = result == nullptr;  // by a signal's handler, too
    Py_XDECREF(result);
  }
  if (!raised) return {};
  return {ErrorCode::kInterrupted, "a signal's handler ended the wait"};  // its exception is what Python sees
}

WhileWaiting::WhileWaiting(py::handle function) { while_waiting = function; }

WhileWaiting::~WhileWaiting() { while_waiting = py::handle(); }

}  // namespace collective_ops::python
