// collective_ops._core: what Python sees of the C++ core. No PyTorch.
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "array.h"
#include "kernels/limit.h"
#include "kernels/targets.h"
#include "module.h"

namespace collective_ops {
namespace {

template <typename Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.emplace_back(name_of(static_cast<Enum>(i)));
  return result;
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.attr("__version__") = COLLECTIVE_OPS_VERSION;
  module.attr("data_types") = names<DataType>(kDataTypeCount);
  pybind11::dict sizes;
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    sizes[pybind11::str(std::string(name_of(type)))] = size_of(type);
  }
  module.attr("type_sizes") = sizes;  // bytes of an element
  module.attr("reduce_ops") =
      names<ReduceOp>(static_cast<int>(ReduceOp::kPreMulSum));  // which needs a factor besides its name
  std::vector<std::string> codes = names<ErrorCode>(kErrorCodeCount);
  codes.erase(codes.begin());  // ok
  module.attr("error_codes") = codes;
  module.attr("collectives") = names<Collective>(kCollectiveCount);
  module.def(
      "kernel_target", [] { return std::string(supported_kernel_targets().front()); },
      "The instruction set that reductions use on this processor.");
  module.def(
      "inplace_reduce_seconds", &inplace_reduce_seconds, pybind11::arg("ranks"), pybind11::arg("bytes"),
      pybind11::arg("threads"), pybind11::call_guard<pybind11::gil_scoped_release>(),
      "Median seconds of the in-place float32 sum over `ranks` shared buffers of `bytes` each, cut among "
      "`threads` threads without any synchronisation: the limit of this machine. 0.0 if it could not be "
      "measured.");
  // For tests: the data type, element count and contiguity that a call would see.
  module.def(
      "describe_array",
      [](pybind11::handle object, bool writable) {
        const python::Array array =
            python::array_from(object, writable ? python::Access::kWrite : python::Access::kRead, "array");
        return pybind11::make_tuple(std::string(name_of(array.type)), array.count, array.contiguous);
      },
      pybind11::arg("array"), pybind11::arg("writable") = true);
  python::bind_shared_array(module);
  python::bind_communicator(module);
  python::bind_trace(module);
  python::bind_inspection(module);
  python::bind_hosts(module);
}

}  // namespace collective_ops
