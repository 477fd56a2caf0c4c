// collective_ops._analysis: src/analysis. python/collective_ops/analyze.py calls it.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "analysis/cluster.h"
#include "errors.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

// Paths and names in profiles are bytes; what is no UTF-8 in them must not hide the result.
std::string readable(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"));
}

using Inputs = std::vector<std::pair<std::string, std::string>>;  // path, how results name it ("": as it is)
using Ranks = std::map<std::string, int>;                         // of canonical paths

// `progress(done, total)` is called from this thread a few times a second; what it raises, and a signal's
// handler too, ends the analysis and comes out of this call.
ClusterOptions options_of(const Inputs& inputs, const Inputs& problems, const Ranks& ranks, int threads,
                          const py::object& progress) {
  ClusterOptions options;
  for (const auto& [path, shown] : inputs) options.inputs.push_back({path, shown});
  for (const auto& [path, text] : problems) options.reading.problems.push_back({path, text});
  for (const auto& [path, rank] : ranks) options.reading.ranks[path] = rank;
  options.reading.threads = threads;
  options.reading.progress = [&progress](size_t done, size_t total) {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) return false;
    try {
      if (!progress.is_none()) progress(done, total);
      return true;
    } catch (py::error_already_set& error) {
      error.restore();
      return false;
    }
  };
  return options;
}

// What `work` returns, without Python's lock; its error as an exception.
template <typename Work>
auto unlocked(const Work& work) {
  auto made = [&] {
    const py::gil_scoped_release release;
    return work();
  }();
  if (!made.ok()) raise(Status(made.status().code(), readable(made.status().message())));
  return std::move(*made);
}

py::dict analyze(const ClusterOptions& options) {
  const ClusterReport report = unlocked([&] { return analyze_cluster(options); });
  py::dict result;
  result["text"] = readable(report.text());
  result["json"] = readable(report.json());
  result["partial"] = report.partial();
  return result;
}

py::dict analyze_inputs(const Inputs& inputs, const Inputs& problems, const Ranks& ranks,
                        const std::string& output, const std::string& mode, int threads,
                        const py::object& progress) {
  ClusterOptions options = options_of(inputs, problems, ranks, threads, progress);
  options.output = output;
  options.mode = mode;
  return analyze(options);
}

py::dict merge_shards(const std::vector<std::string>& shards, const std::string& output,
                      const std::string& mode) {
  ClusterOptions options;
  options.shards.assign(shards.begin(), shards.end());
  options.output = output;
  options.mode = mode;
  return analyze(options);
}

// The summary, and whether something could not be used.
std::pair<std::string, bool> shard(const Inputs& inputs, const Inputs& problems, const Ranks& ranks,
                                   const std::string& path, int threads, const py::object& progress) {
  const ClusterOptions options = options_of(inputs, problems, ranks, threads, progress);
  const ShardReport report = unlocked([&] { return make_shard(options, path); });
  return {readable(report.text()), !report.profiles.problems.empty()};
}

}  // namespace
}  // namespace collective_ops::python

PYBIND11_MODULE(_analysis, module) {
  namespace ours = collective_ops::python;
  std::vector<std::pair<std::string, std::string>> modes;
  for (const auto& mode : collective_ops::cluster_modes()) modes.emplace_back(mode.name, mode.help);
  module.attr("cluster_modes") = modes;
  module.def("analyze_cluster", &ours::analyze_inputs, py::arg("inputs"), py::arg("problems"),
             py::arg("ranks"), py::arg("output"), py::arg("mode"), py::arg("threads"), py::arg("progress"));
  module.def("merge_shards", &ours::merge_shards, py::arg("shards"), py::arg("output"), py::arg("mode"));
  module.def("make_shard", &ours::shard, py::arg("inputs"), py::arg("problems"), py::arg("ranks"),
             py::arg("path"), py::arg("threads"), py::arg("progress"));
}
