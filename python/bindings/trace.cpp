// src/trace: the merge of the ranks' files. python/collective_ops/trace.py calls it.
#include <filesystem>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "errors.h"
#include "module.h"
#include "trace/merge.h"
#include "trace/recording.h"

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

std::vector<std::string> texts_of(const std::vector<std::filesystem::path>& paths) {
  return {paths.begin(), paths.end()};
}

}  // namespace

void bind_trace(py::module_& module) {
  module.def("merge_trace", &merge, py::arg("inputs"), py::arg("output"), py::arg("job") = "",
             py::arg("keep") = false);
  module.def(
      "record_calls",
      [](const std::string& directory, bool steps) {
        return texts_of(take(record_calls({.directory = directory, .steps = steps})));
      },
      py::arg("directory"), py::arg("steps") = false, py::call_guard<py::gil_scoped_release>(),
      "Every communicator of this process records its calls from now on, those to come included; with the "
      "steps of their plans where asked for. One that records already goes on into its own file. The files.");
  module.def("stop_recording_calls", &stop_recording_calls, py::call_guard<py::gil_scoped_release>(),
             "Ends what record_calls began.");
  module.def(
      "recordable",
      [] {
        py::list rows;
        for (const RecorderIdentity& one : recordable())
          rows.append(py::make_tuple(one.job_id, one.rank, one.world_size, one.run));
        return rows;
      },
      "(job, rank, world size, run) of each communicator of this process.");
  module.def(
      "recorded_files", [] { return texts_of(recorded_files()); },
      "The files that communicators of this process write now.");
}

}  // namespace collective_ops::python
