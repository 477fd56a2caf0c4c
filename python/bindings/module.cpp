// collective_ops._core: what Python sees of the C++ core. No PyTorch.
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <collective_ops/types.h>

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
  module.attr("reduce_ops") = names<ReduceOp>(kReduceOpCount);
  module.attr("collectives") = names<Collective>(kCollectiveCount);
}

}  // namespace collective_ops
