// src/communicator: a rank's end of its group, with Python's arrays in place of pointers.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <collective_ops/communicator.h>
#include <collective_ops/python_link.h>

#include "arguments.h"
#include "array.h"
#include "errors.h"
#include "hosts.h"
#include "messages.h"
#include "module.h"
#include "pending_work.h"
#include "waiting.h"

namespace py = pybind11;
using std::chrono::milliseconds;

namespace collective_ops::python {
namespace {

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

// Type and count of a call, and whether the arrays have as many elements as it moves.
void check_sizes(Call& call, const Operands& operands, int rank, int world_size) {
  const Array* sent = operands.send ? &operands.send->array() : nullptr;
  const Array* received = operands.recv ? &operands.recv->array() : nullptr;
  const auto refuse = [&](const std::string& what) {
    raise({ErrorCode::kInvalidArgument, fmt::format("{}: {}", name_of(call.collective), what)});
  };
  if (sent == nullptr && received == nullptr) refuse("there is neither tensor nor out");
  if (sent != nullptr && received != nullptr && sent->type != received->type) {
    refuse(fmt::format("tensor is of {}, but out of {}", name_of(sent->type), name_of(received->type)));
  }
  call.type = (sent != nullptr ? sent : received)->type;
  const auto ranks = static_cast<size_t>(world_size);
  const auto holds = [&](const char* name, const Array* array, size_t wanted, std::string_view why) {
    if (array == nullptr || array->count == wanted) return;
    refuse(fmt::format("{} has {} elements, but {} {}", name, array->count, wanted, why));
  };
  const size_t own = sent != nullptr ? sent->count : received->count;
  const auto me = static_cast<size_t>(rank);
  switch (call.collective) {
    case Collective::kReduce:
      call.count = own;
      return holds("out", received, own, "are reduced");
    case Collective::kGather:
      call.count = own;
      return holds("out", received, own * ranks, fmt::format("come from {} ranks", ranks));
    case Collective::kScatter:
      if (received == nullptr) refuse("out is missing");
      call.count = received->count;
      return holds("tensor", sent, call.count * ranks, fmt::format("go to {} ranks", ranks));
    case Collective::kAllToAll:
      holds("out", received, own, "are sent");
      if (own % ranks != 0) refuse(fmt::format("{} elements do not divide among {} ranks", own, ranks));
      call.count = own / ranks;
      return;
    default:
      break;
  }
  const auto sum = [](std::span<const size_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), size_t{0});
  };
  call.count = call.collective == Collective::kScatterV && received != nullptr ? received->count : own;
  if (!call.send_counts.empty()) holds("tensor", sent, sum(call.send_counts), "is the sum of its splits");
  if (!call.recv_counts.empty()) holds("out", received, sum(call.recv_counts), "is the sum of its splits");
  if (call.collective == Collective::kAllGatherV && call.recv_counts.size() == ranks) {
    holds("tensor", sent, call.recv_counts[me], "is this rank's part");
  }
  if (call.collective == Collective::kReduceScatterV && call.send_counts.size() == ranks) {
    holds("out", received, call.send_counts[me], "is this rank's part");
  }
}

// Calls that this thread has begun, refused ones included.
thread_local uint64_t calls_begun = 0;

struct Prepared {
  Call call;
  Operands operands;
};

// Of a collective in which all ranks have both arrays, or work in place.
Prepared prepared(Call call, Operands operands) {
  const Operand& sent = operands.send ? *operands.send : *operands.recv;
  sent.pack_if_needed();
  call.send = sent.pointer();
  call.recv = operands.recv->pointer();
  call.type = sent.array().type;
  call.count =
      call.collective == Collective::kReduceScatter ? operands.recv->array().count : sent.array().count;
  return {call, std::move(operands)};
}

class Group {
 public:
  Group(int rank, int world_size, std::string job_id, py::handle connect_timeout, py::handle timeout,
        py::handle while_waiting, std::string root_info, py::handle store, std::string rank_table) {
    const ConnectOptions options{rank,
                                 world_size,
                                 std::move(job_id),
                                 milliseconds_from(connect_timeout, "connect_timeout"),
                                 milliseconds_from(timeout),
                                 look_for_signals,
                                 std::move(root_info),
                                 store_from(store),
                                 std::move(rank_table)};
    auto connected = [&] {
      const WhileWaiting calls(while_waiting);
      const Wait released;
      return Communicator::connect(options);
    }();
    communicator_ = take(std::move(connected));
  }
  explicit Group(std::unique_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  // A group that another module has made; calls of both are one sequence. `timeout`: of calls made here.
  Group(const SharedGroup& shared, py::object timeout)
      : communicator_(shared.communicator), timeout_(std::move(timeout)) {
    also_interruptible(shared.interruptible);
  }
  ~Group() {
    try {
      close();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("collective_ops: leaving the group");
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void close() {
    auto communicator = std::move(communicator_);
    {
      const Wait released;  // what was started is finished first, unless Ctrl-C ends that
      communicator.reset();
    }
    deliver_finished();
    pending_.clear();
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  }

  MaybeWork all_reduce(py::handle array, py::handle op, py::handle timeout, bool asynchronous) {
    return run(timeout, asynchronous, [&](Communicator&) {
      const Reduction reduction = reduction_from(op);
      return prepared({.collective = Collective::kAllReduce, .op = reduction.op, .factor = reduction.factor},
                      in_place(array));
    });
  }
  MaybeWork broadcast(py::handle array, py::handle root, py::handle timeout, bool asynchronous) {
    return run(timeout, asynchronous, [&](Communicator&) {
      return prepared({.collective = Collective::kBroadcast, .root = root_from(root)}, in_place(array));
    });
  }
  // `out` has world_size times the elements of `array`.
  MaybeWork all_gather(py::handle array, py::handle out, py::handle timeout, bool asynchronous) {
    return run(timeout, asynchronous, [&](Communicator& communicator) {
      return prepared({.collective = Collective::kAllGather},
                      pair_of(array, out, communicator.world_size(), true));
    });
  }
  // `array` has world_size times the elements of `out`.
  MaybeWork reduce_scatter(py::handle array, py::handle out, py::handle op, py::handle timeout,
                           bool asynchronous) {
    return run(timeout, asynchronous, [&](Communicator& communicator) {
      const Reduction reduction = reduction_from(op);
      return prepared(
          {.collective = Collective::kReduceScatter, .op = reduction.op, .factor = reduction.factor},
          pair_of(array, out, communicator.world_size(), false));
    });
  }
  // The other collectives, by name. `array` or `out` may be None where the rank has none of it; reduce of an
  // array into itself is in place. Counts as in the core's v variants.
  MaybeWork exchange(std::string_view name, py::handle array, py::handle out, py::handle op, py::handle root,
                     const std::vector<size_t>& send_counts, const std::vector<size_t>& recv_counts,
                     py::handle timeout, bool asynchronous) {
    return run(timeout, asynchronous, [&](Communicator& communicator) {
      const Reduction reduction = reduction_from(op);
      Prepared made{{.collective = collective_from(name).value(),
                     .op = reduction.op,
                     .root = root_from(root),
                     .factor = reduction.factor},
                    {}};
      auto& [call, operands] = made;
      call.send_counts = send_counts;
      call.recv_counts = recv_counts;
      if (!array.is_none() && !array.is(out)) operands.send.emplace(array, Access::kRead, "tensor");
      if (!out.is_none()) operands.recv.emplace(out, Access::kWrite, "out");
      check_sizes(call, operands, communicator.rank(), communicator.world_size());
      const Operand* sent = operands.send ? &*operands.send : array.is(out) ? &*operands.recv : nullptr;
      if (sent != nullptr) {
        sent->pack_if_needed();
        call.send = sent->pointer();
      }
      if (operands.recv) call.recv = operands.recv->pointer();
      return made;
    });
  }
  // Before a call on tensors of a device: an all-gather of what each rank is about to call there.
  void agree(py::handle mine, py::handle everyones, py::handle timeout) {
    run(timeout, false, [&](Communicator& communicator) {
      return prepared({.collective = Collective::kAllGather, .for_device = true},
                      pair_of(mine, everyones, communicator.world_size(), true));
    });
  }
  // Messages, as messages.h says.
  py::object transfer(const py::sequence& items, py::handle timeout, bool asynchronous) {
    const std::shared_ptr<Communicator> communicator = open();
    if (!asynchronous) return exchange_messages(*communicator, items, limit(timeout));
    deliver_finished();
    const std::vector<MaybeWork> works = start_messages(*communicator, items, limit(timeout));
    pending_.insert(pending_.end(), works.begin(), works.end());
    return py::cast(works);
  }
  MaybeWork barrier(py::handle timeout, bool asynchronous) {
    return run(timeout, asynchronous, [](Communicator&) -> Prepared {
      return {{.collective = Collective::kBarrier}, {}};
    });
  }
  void refuse_call() { refuse(*open()); }

  // Of members alone; `ranks` are ranks of this group.
  std::unique_ptr<Group> create_group(const std::vector<int>& ranks, std::string name, py::handle timeout,
                                      py::handle connect_timeout) {
    const GroupOptions options{std::move(name), milliseconds_from(connect_timeout, "connect_timeout"),
                               milliseconds_from(timeout)};
    const std::shared_ptr<Communicator> communicator = open();
    auto created = [&] {
      const Wait released;
      return communicator->create_group(ranks, options);
    }();
    return std::make_unique<Group>(take(std::move(created)));
  }
  void abort(const std::string& reason) { open()->abort(reason); }

  int rank() { return open()->rank(); }
  int world_size() { return open()->world_size(); }
  std::vector<int> ranks() {
    const std::shared_ptr<Communicator> communicator = open();
    return {communicator->ranks().begin(), communicator->ranks().end()};
  }
  std::string name() { return open()->name(); }
  py::dict counters() {
    py::dict result;
    for_each(open()->counters(), [&](const char* name, uint64_t value) { result[name] = value; });
    return result;
  }

 private:
  py::handle limit(py::handle timeout) const { return timeout.is_none() ? py::handle(timeout_) : timeout; }

  static Operands in_place(py::handle array) {
    return {std::nullopt, Operand(array, Access::kWrite, "tensor")};
  }

  // A copy: another thread may close the group during a call.
  std::shared_ptr<Communicator> open() const {
    if (!communicator_) raise({ErrorCode::kNotInitialized, "this group is closed; call init_hccl again"});
    return communicator_;
  }

  // Null where the call was a blocking one. What `prepare` (of the communicator) raises is a call that this
  // rank refuses: it counts as one on all ranks.
  template <typename Prepare>
  MaybeWork run(py::handle timeout, bool asynchronous, const Prepare& prepare) {
    const std::shared_ptr<Communicator> communicator = open();
    ++calls_begun;
    Prepared ready = [&] {
      try {
        Prepared made = prepare(*communicator);
        made.call.timeout = milliseconds_from(limit(timeout));
        return made;
      } catch (...) {
        refuse(*communicator);
        throw;
      }
    }();
    return issue(*communicator, ready.call, std::move(ready.operands), asynchronous);
  }

  static void refuse(Communicator& communicator) {
    {
      const Wait released;  // calls that were started come first
      communicator.refuse_call();
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  }

  MaybeWork issue(Communicator& communicator, const Call& call, Operands operands, bool asynchronous) {
    if (asynchronous) return start(communicator, call, std::move(operands));
    const Status status = [&] {
      const Wait released;
      return communicator.run(call);
    }();
    if (!pending_.empty()) deliver_finished();
    check(status);
    if (operands.recv) operands.recv->unpack_if_needed();
    return nullptr;
  }

  MaybeWork start(Communicator& communicator, const Call& call, Operands operands) {
    // A call that nobody waits for still needs its arrays until it is done.
    deliver_finished();
    pending_.push_back(std::make_shared<PendingWork>(communicator.start(call), std::move(operands)));
    return pending_.back();
  }

  void deliver_finished() {
    std::erase_if(pending_, [](const MaybeWork& work) {
      if (work->done()) work->deliver();
      return work->done();
    });
  }

  std::shared_ptr<Communicator> communicator_;
  py::object timeout_ = py::none();  // of calls that give none
  std::vector<MaybeWork> pending_;
};

}  // namespace

void bind_communicator(py::module_& module) {
  module.def("calls_begun", [] { return calls_begun; });
  module.def(
      "reduce_op_name", [](py::handle op) { return std::string(name_of(reduction_from(op).op)); },
      py::arg("op"),
      "The name in reduce_ops of what a call takes as op; InvalidArgumentError where it takes it not.");

  py::class_<PendingWork, std::shared_ptr<PendingWork>>(module, "Work")
      .def("wait", &PendingWork::wait, py::arg("timeout") = py::none())
      .def("done", &PendingWork::done)
      .def("source", &PendingWork::source);

  // Timeouts are in seconds; None: the default.
  py::class_<Group>(module, "Communicator")
      .def(py::init<int, int, std::string, py::handle, py::handle, py::handle, std::string, py::handle,
                    std::string>(),
           py::arg("rank"), py::arg("world_size"), py::arg("job_id") = "",
           py::arg("connect_timeout") = py::none(), py::arg("timeout") = py::none(),
           py::arg("while_waiting") = py::none(), py::arg("root_info") = "", py::arg("store") = py::none(),
           py::arg("rank_table") = "")
      .def("all_reduce", &Group::all_reduce)
      .def("broadcast", &Group::broadcast)
      .def("all_gather", &Group::all_gather)
      .def("reduce_scatter", &Group::reduce_scatter)
      .def("exchange", &Group::exchange)
      .def("agree", &Group::agree)
      .def("transfer", &Group::transfer)
      .def("barrier", &Group::barrier)
      .def_static(
          "adopt",
          [](const py::capsule& group, py::object timeout) {
            if (std::string_view(group.name()) != SharedGroup::kCapsule)
              throw py::type_error("adopt takes what _torch.ProcessGroupCollectiveOps.share() returns");
            return std::make_unique<Group>(*group.get_pointer<SharedGroup>(), std::move(timeout));
          },
          py::arg("group"), py::arg("timeout"))
      .def("refuse_call", &Group::refuse_call)
      .def("create_group", &Group::create_group, py::arg("ranks"), py::arg("name") = "",
           py::arg("timeout") = py::none(), py::arg("connect_timeout") = py::none())
      .def("abort", &Group::abort)
      .def("close", &Group::close)
      .def("counters", &Group::counters)
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("world_size", &Group::world_size)
      .def_property_readonly("ranks", &Group::ranks)
      .def_property_readonly("name", &Group::name);
}

}  // namespace collective_ops::python
