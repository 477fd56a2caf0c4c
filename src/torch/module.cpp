// collective_ops_torch._torch: what Python sees of the backend.
#include <string>

#include "torch/activity.h"
#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/flight_recorder.h"
#include "torch/shared_slots.h"
#include "torch/symmetric_memory.h"

namespace py = pybind11;

namespace collective_ops::pytorch {
namespace {

using Group = ProcessGroupCollectiveOps;

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout, const std::string& group,
                                         const std::vector<int64_t>& global_ranks, const std::string& name) {
  auto options = c10::make_intrusive<Group::Options>(timeout);
  options->group_name = group;
  options->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());
  if (global_ranks.empty()) {  // c10d's way to say: all of the world
    for (int world_rank = 0; world_rank < size; ++world_rank)
      options->global_ranks_in_group.push_back(world_rank);
  }
  return c10::make_intrusive<Group>(store, rank, size, std::move(options), name);
}

py::dict counters(Group& group) {
  py::dict result;
  for_each(group.counters(), [&](const char* name, uint64_t value) { result[name] = value; });
  return result;
}

py::capsule share(Group& group) {
  const auto destroy = [](PyObject* capsule) {
    delete static_cast<SharedGroup*>(PyCapsule_GetPointer(capsule, SharedGroup::kCapsule));
  };
  return py::capsule(new SharedGroup(group.share()), SharedGroup::kCapsule, destroy);
}

// For collective_ops_torch.fsdp alone.
void bind_shared_slots(py::module_& module) {
  py::class_<Lease, std::shared_ptr<Lease>>(module, "Lease")
      .def_property_readonly("index", &Lease::index)
      .def("tensor", &leased_tensor, py::arg("elements"), py::arg("dtype"));
  py::class_<SharedSlots>(module, "SharedSlots")
      .def(py::init<c10::intrusive_ptr<Group>, size_t>(), py::arg("group"), py::arg("bytes"))
      .def("__len__", &SharedSlots::count)
      .def("add", &SharedSlots::add)
      .def("take", &SharedSlots::take, py::arg("number"))
      .def("take_slot", &SharedSlots::take_slot, py::arg("number"), py::arg("index"));
  py::class_<SlotPlaces>(module, "SlotPlaces")
      .def(py::init<>())
      .def("set", &SlotPlaces::set, py::arg("lease").none(true), py::arg("tensors"))
      .def("tensor", &SlotPlaces::tensor, py::arg("elements"), py::arg("dtype"), py::arg("offset"));
}

}  // namespace

PYBIND11_MODULE(_torch, module) {
  py::module_::import("torch.distributed");
  module.attr("__version__") = COLLECTIVE_OPS_VERSION;
  module.attr("torch_version") = COLLECTIVE_OPS_TORCH_VERSION;
  const py::object base = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<Group, c10d::Backend, c10::intrusive_ptr<Group>>(module, "ProcessGroupCollectiveOps")
      .def("counters", &counters,
           "What this rank has done in the group: calls, bytes, calls and copied bytes by data path, "
           "messages.")
      .def("share", &share, "The group, for collective_ops.init_hccl.");
  offer_symmetric_memory();
  bind_shared_slots(module);
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("group"), py::arg("global_ranks"), py::arg("name"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "shutdown_all", &shutdown_all, py::arg("reason") = "", py::call_guard<py::gil_scoped_release>(),
      "Leaves every group of this process, once what was started has finished; with a reason at once.");
  module.def("start_activity", &start_activity,
             "From now on, notes when the threads of this process are in operators of PyTorch.");
  module.def(
      "stop_activity", [] { return py::bytes(stop_activity()); },
      "Ends that. Four int64 each: thread, begin and end (monotonic ns), 1 where a collective is issued.");
  module.def(
      "dump_flight_recorder",
      [](bool only_active) { return py::bytes(FlightRecorder::instance().dump(only_active)); },
      py::arg("only_active") = false,
      "The last calls of this process as PyTorch's flight recorder dumps them: a pickle for torchfrtrace.");
}

}  // namespace collective_ops::pytorch
