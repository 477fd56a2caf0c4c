// src/communicator: a rank's end of its group, with Python's arrays in place of pointers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <collective_ops/communicator.h>

#include "array.h"
#include "errors.h"
#include "module.h"

namespace py = pybind11;
using std::chrono::milliseconds;

namespace collective_ops::python {
namespace {

// --- Waiting without the GIL, and Ctrl-C -----------------------------------------------------------

// How often a long wait takes the GIL to look for signals.
constexpr auto kSignalPeriod = milliseconds(50);

// True while this thread is inside Wait, so that the group's own thread never asks for the GIL.
thread_local bool waits_for_python = false;
thread_local std::chrono::steady_clock::time_point next_look;

// Releases the GIL, and lets signals' handlers run during long waits (in the main thread, as always).
class Wait {
 public:
  Wait() : state_(PyEval_SaveThread()) { waits_for_python = true; }
  ~Wait() {
    waits_for_python = false;
    PyEval_RestoreThread(state_);
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  PyThreadState* state_;
};

Status look_for_signals() {
  if (!waits_for_python) return {};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look) return {};
  next_look = now + kSignalPeriod;
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return {};
  return {ErrorCode::kInterrupted, "a signal's handler ended the wait"};  // its exception is what Python sees
}

// --- Arguments -------------------------------------------------------------------------------------

std::optional<milliseconds> milliseconds_from(py::handle seconds) {
  if (seconds.is_none()) return std::nullopt;
  const py::object number = py::hasattr(seconds, "total_seconds")
                                ? py::object(seconds.attr("total_seconds")())
                                : py::reinterpret_borrow<py::object>(seconds);
  const double value = PyFloat_AsDouble(number.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (!(value >= 0) || value > 1e9) {
    raise({ErrorCode::kInvalidArgument,
           fmt::format("timeout={}: seconds from 0 (wait for ever) to 1e9", value)});
  }
  return milliseconds(static_cast<int64_t>(std::ceil(value * 1000)));
}

ReduceOp op_from(std::string_view name) {
  if (const auto op = reduce_op_from(name)) return *op;
  std::string known;
  for (int i = 0; i < static_cast<int>(ReduceOp::kPreMulSum); ++i) {
    known += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(static_cast<ReduceOp>(i)));
  }
  raise({ErrorCode::kInvalidArgument, fmt::format("op=\"{}\" is not known; there are {}", name, known)});
}

// An argument of a call: the array itself where it is contiguous, else a packed copy of it.
class Operand {
 public:
  Operand(py::handle object, Access access, std::string_view name)
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

// --- An asynchronous call --------------------------------------------------------------------------

class PendingWork {
 public:
  PendingWork(std::shared_ptr<Work> work, Operands operands)
      : work_(std::move(work)), operands_(std::move(operands)) {}

  void wait(py::handle timeout) {
    const auto limit = milliseconds_from(timeout);
    const Status status = [&] {
      const Wait released;
      return work_->wait(limit);
    }();
    check(status);
    if (operands_.recv) operands_.recv->unpack_if_needed();
  }
  bool done() const { return work_->done(); }

 private:
  std::shared_ptr<Work> work_;
  Operands operands_;
};

using MaybeWork = std::shared_ptr<PendingWork>;

// --- The communicator ------------------------------------------------------------------------------

Operands pair_of(py::handle array, py::handle out, int world_size, bool gathers) {
  Operands operands{Operand(array, Access::kRead, "tensor"), Operand(out, Access::kWrite, "out")};
  const Array& sent = operands.send->array();
  const Array& received = operands.recv->array();
  if (sent.type != received.type) {
    raise({ErrorCode::kInvalidArgument,
           fmt::format("tensor is of {}, but out of {}", name_of(sent.type), name_of(received.type))});
  }
  const auto ranks = static_cast<size_t>(world_size);
  if (gathers ? received.count != ranks * sent.count : sent.count != ranks * received.count) {
    raise({ErrorCode::kInvalidArgument,
           fmt::format("with {} ranks, {} has {} times the elements of {}; tensor has {}, out has {}", ranks,
                       gathers ? "out" : "tensor", ranks, gathers ? "tensor" : "out", sent.count,
                       received.count)});
  }
  return operands;
}

class Group {
 public:
  Group(int rank, int world_size, std::string job_id, py::handle connect_timeout, py::handle timeout) {
    const ConnectOptions options{rank,
                                 world_size,
                                 std::move(job_id),
                                 milliseconds_from(connect_timeout),
                                 milliseconds_from(timeout),
                                 look_for_signals};
    auto connected = [&] {
      const Wait released;
      return Communicator::connect(options);
    }();
    communicator_ = take(std::move(connected));
  }
  ~Group() { close(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void close() {
    auto communicator = std::move(communicator_);
    {
      const py::gil_scoped_release release;
      communicator.reset();
    }
    pending_.clear();
  }

  MaybeWork all_reduce(py::handle array, std::string_view op, py::handle timeout, bool asynchronous) {
    return run({.collective = Collective::kAllReduce, .op = op_from(op)}, in_place(array), timeout,
               asynchronous);
  }
  MaybeWork broadcast(py::handle array, int root, py::handle timeout, bool asynchronous) {
    return run({.collective = Collective::kBroadcast, .root = root}, in_place(array), timeout, asynchronous);
  }
  // `out` has world_size times the elements of `array`.
  MaybeWork all_gather(py::handle array, py::handle out, py::handle timeout, bool asynchronous) {
    return run({.collective = Collective::kAllGather}, pair_of(array, out, open()->world_size(), true),
               timeout, asynchronous);
  }
  // `array` has world_size times the elements of `out`.
  MaybeWork reduce_scatter(py::handle array, py::handle out, std::string_view op, py::handle timeout,
                           bool asynchronous) {
    return run({.collective = Collective::kReduceScatter, .op = op_from(op)},
               pair_of(array, out, open()->world_size(), false), timeout, asynchronous);
  }
  MaybeWork barrier(py::handle timeout, bool asynchronous) {
    return run({.collective = Collective::kBarrier}, {}, timeout, asynchronous);
  }

  int rank() { return open()->rank(); }
  int world_size() { return open()->world_size(); }
  py::dict counters() {
    const Counters counters = open()->counters();
    py::dict result;
    result["calls"] = counters.calls;
    result["bytes"] = counters.bytes;
    result["inline_calls"] = counters.inline_calls;
    result["staged_calls"] = counters.staged_calls;
    result["direct_calls"] = counters.direct_calls;
    result["read_calls"] = counters.read_calls;
    result["copied_bytes"] = counters.copied_bytes;
    return result;
  }

 private:
  static Operands in_place(py::handle array) {
    return {std::nullopt, Operand(array, Access::kWrite, "tensor")};
  }

  // A copy: another thread may close the group during a call.
  std::shared_ptr<Communicator> open() const {
    if (!communicator_) raise({ErrorCode::kNotInitialized, "this group is closed; call init_hccl again"});
    return communicator_;
  }

  // Null where the call was a blocking one.
  MaybeWork run(Call call, Operands operands, py::handle timeout, bool asynchronous) {
    const std::shared_ptr<Communicator> communicator = open();
    call.timeout = milliseconds_from(timeout);
    if (operands.recv) {
      const Operand& sent = operands.send ? *operands.send : *operands.recv;
      sent.pack_if_needed();
      call.send = sent.pointer();
      call.recv = operands.recv->pointer();
      call.type = sent.array().type;
      call.count =
          call.collective == Collective::kReduceScatter ? operands.recv->array().count : sent.array().count;
    }
    if (asynchronous) return start(*communicator, call, std::move(operands));
    const Status status = [&] {
      const Wait released;
      return communicator->run(call);
    }();
    check(status);
    if (operands.recv) operands.recv->unpack_if_needed();
    return nullptr;
  }

  MaybeWork start(Communicator& communicator, const Call& call, Operands operands) {
    // A call that nobody waits for still needs its arrays until it is done.
    std::erase_if(pending_, [](const MaybeWork& work) { return work->done(); });
    pending_.push_back(std::make_shared<PendingWork>(communicator.start(call), std::move(operands)));
    return pending_.back();
  }

  std::shared_ptr<Communicator> communicator_;
  std::vector<MaybeWork> pending_;
};

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<PendingWork, std::shared_ptr<PendingWork>>(module, "Work")
      .def("wait", &PendingWork::wait, py::arg("timeout") = py::none())
      .def("done", &PendingWork::done);

  // Timeouts are in seconds; None: the default.
  py::class_<Group>(module, "Communicator")
      .def(py::init<int, int, std::string, py::handle, py::handle>(), py::arg("rank"), py::arg("world_size"),
           py::arg("job_id") = "", py::arg("connect_timeout") = py::none(), py::arg("timeout") = py::none())
      .def("all_reduce", &Group::all_reduce)
      .def("broadcast", &Group::broadcast)
      .def("all_gather", &Group::all_gather)
      .def("reduce_scatter", &Group::reduce_scatter)
      .def("barrier", &Group::barrier)
      .def("close", &Group::close)
      .def("counters", &Group::counters)
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("world_size", &Group::world_size);
}

}  // namespace collective_ops::python
