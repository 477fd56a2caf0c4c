// What `collective-ops doctor` and `collective-ops status` ask the core: the memory of a group as seen from
// outside, the last calls of a trace file, the table of environment variables, the limits of memory.
#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/environment.h"
#include "communicator/members.h"
#include "communicator/status.h"
#include "errors.h"
#include "memory/headroom.h"
#include "memory/shared_segment.h"
#include "module.h"
#include "trace/reader.h"
#include "transport/shm/cores.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

// Texts of other processes and files, whatever their bytes are.
py::object text_from(std::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

py::dict group_status(const py::bytes& memory) {
  const auto bytes = static_cast<std::string_view>(memory);
  const GroupStatus status = take(read_status(std::as_bytes(std::span(bytes))));
  py::list ranks;
  for (const RankStatus& rank : status.ranks) {
    py::dict entry;
    entry["rank"] = rank.rank;
    entry["world_rank"] = rank.world_rank;
    entry["pid"] = rank.pid;
    entry["activity"] = std::string(name_of(rank.activity));
    entry["issued"] = rank.issued;
    entry["finished"] = rank.finished;
    entry["call"] = rank.call;
    entry["waits_for"] = rank.waits_for < 0 ? py::object(py::none()) : py::object(py::int_(rank.waits_for));
    entry["since_ns"] = rank.since_ns;
    entry["elsewhere"] = text_from(rank.elsewhere);
    ranks.append(entry);
  }
  py::dict result;
  result["job"] = text_from(status.job);
  result["is_world"] = status.id == 0;
  result["name"] = text_from(status.name);
  result["ranks"] = ranks;
  result["failure_code"] = status.failure.ok() ? "" : std::string(name_of(status.failure.code()));
  result["failure"] = text_from(status.failure.message());
  return result;
}

py::dict call_from(const CallRecord& record, const TraceFileInfo& info) {
  py::dict call;
  call["group"] = record.group;
  call["sequence"] = record.sequence;
  call["collective"] = std::string(name_of(record.collective));
  call["type"] = std::string(name_of(record.type));
  call["op"] = std::string(name_of(record.op));
  call["count"] = record.count;
  call["status"] = std::string(name_of(record.status));
  call["waited_ns"] = record.waited_ns;
  call["waited_for"] =
      record.longest_peer == kNoPeer ? py::object(py::none()) : py::object(py::int_(record.longest_peer));
  // Real time, by the pair that the file holds.
  call["ended_unix_ns"] = info.opened_real_ns + (record.ended_ns - info.opened_monotonic_ns);
  return call;
}

py::dict last_calls(const std::string& path, size_t count) {
  TraceFileReader file = take(TraceFileReader::open(path));
  std::deque<CallRecord> kept;
  std::map<uint32_t, std::string> groups;
  for (auto entry = file.next(); entry != TraceFileReader::Entry::kEnd; entry = file.next()) {
    if (entry == TraceFileReader::Entry::kGroup)
      groups[file.group().id] = group_text(file.group().name, file.group().ranks);
    if (entry != TraceFileReader::Entry::kCall || count == 0) continue;
    if (kept.size() == count) kept.pop_front();
    kept.push_back(file.call());
  }
  const TraceFileInfo& info = file.info();
  py::list calls;
  for (const CallRecord& record : kept) {
    py::dict call = call_from(record, info);
    call["group_text"] = text_from(groups[record.group]);
    calls.append(call);
  }
  py::dict result;
  result["job"] = text_from(info.job_id);
  result["rank"] = info.rank;
  result["world_size"] = info.world_size;
  result["pid"] = info.pid;
  result["host"] = text_from(info.host);
  result["run"] = info.run;
  result["opened_unix_ns"] = info.opened_real_ns;
  result["closed"] = info.closed;
  result["recording_pid"] = info.recording_pid;
  result["problem"] = text_from(file.problem());
  result["calls"] = calls;
  return result;
}

py::list variables() {
  py::list rows;
  for (const EnvironmentVariable& variable : environment_variables()) {
    rows.append(py::make_tuple(std::string(variable.name), std::string(variable.default_value),
                               std::string(variable.meaning)));
  }
  return rows;
}

py::list limits() {
  py::list rows;
  for (const MemoryLimit& limit : memory_limits()) {
    py::dict row;
    row["name"] = text_from(limit.name);
    row["source"] = text_from(limit.source);
    row["limit"] = limit.limit;
    row["used"] = limit.used;
    row["advice"] = limit.advice;
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_inspection(py::module_& module) {
  module.attr("control_segment_name") = kControlSegmentName;
  module.attr("status_bytes") = status_bytes();
  module.def("group_status", &group_status, py::arg("memory"),
             "What the front of a control segment says; InvalidArgumentError where it is none.");
  module.def("last_calls", &last_calls, py::arg("path"), py::arg("count"),
             "The header and the last `count` calls of one rank's trace file.");
  module.def("environment_variables", &variables, "(name, default, meaning) of each variable that is read.");
  module.def("usable_cores", [] { return shm::usable_cores(0); },
             "Cores that affinity and the control group's quota leave.");
  module.def("memory_limits", &limits, "Every memory limit that binds this process.");
}

}  // namespace collective_ops::python
