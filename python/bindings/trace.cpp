// src/trace: the merge of the ranks' files. python/collective_ops/trace.py calls it.
#include <filesystem>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "errors.h"
#include "module.h"
#include "trace/merge.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

py::dict merge(const std::vector<std::string>& inputs, const std::string& output, const std::string& job,
               bool keep) {
  const std::vector<std::filesystem::path> paths(inputs.begin(), inputs.end());
  const MergeOptions options{.output = output, .job = job, .keep_files = keep};
  auto merged = [&] {
    const py::gil_scoped_release release;
    return merge_traces(paths, options);
  }();
  const MergeSummary summary = take(std::move(merged));
  py::dict result;
  result["job"] = summary.job;
  result["world_size"] = summary.world_size;
  result["calls"] = summary.calls;
  result["complete"] = summary.complete();
  result["missing_ranks"] = summary.missing_ranks;
  result["other_jobs"] = summary.other_jobs;
  result["text"] = summary.text();
  return result;
}

}  // namespace

void bind_trace(py::module_& module) {
  module.def("merge_trace", &merge, py::arg("inputs"), py::arg("output"), py::arg("job") = "",
             py::arg("keep") = false);
}

}  // namespace collective_ops::python
