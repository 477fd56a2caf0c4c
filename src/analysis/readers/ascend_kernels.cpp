#include "analysis/readers/ascend_kernels.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include <fmt/format.h>

#include "analysis/readers/csv_text.h"
#include "analysis/readers/json_scanner.h"

namespace collective_ops {
namespace {

OperatorKind kind_of(std::string_view core, std::string_view type) {
  if (core == "HCCL" || core == "COMMUNICATION" || type.starts_with("hcom_"))
    return OperatorKind::kCommunication;
  return OperatorKind::kCompute;
}

// But for times that damage has made so large that they do not add up.
void add_kernel(int64_t start, int64_t duration, uint32_t name, uint32_t track, TimelineCollector* timeline) {
  int64_t end = 0;
  if (start < 0 || __builtin_add_overflow(start, duration, &end)) return;
  timeline->add({start, duration, name, track, SliceKind::kCompute});
}

}  // namespace

void read_kernel_details(std::string_view text, RankProfile* profile) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::vector<std::string> header = cells_of(next_line(&text));
  const auto column = [&](std::string_view name) {
    return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  const size_t name = column("Name"), type = column("Type"), core = column("Accelerator Core"),
               duration = column("Duration(us)");
  const size_t start = column("Start Time(us)"), stream = column("Stream ID");
  size_t last = std::max({name, type, core, duration});
  if (last == header.size()) {
    profile->notes.push_back(
        "kernel_details.csv: no columns Name, Type, Accelerator Core, Duration(us); not used");
    return;
  }
  const bool placed = start < header.size() && stream < header.size();  // in time, on a stream
  if (placed) last = std::max({last, start, stream});
  TimelineCollector timeline(timeline_share(profile->world_size), &profile->timeline);
  std::unordered_map<uint64_t, size_t> rows;
  uint64_t broken = 0;
  while (!text.empty()) {
    const std::vector<std::string> cells = cells_of(next_line(&text), last + 1);
    if (cells.size() < 2) continue;
    const auto took = cells.size() > last ? nanoseconds_of(cells[duration]) : std::nullopt;
    if (!took || *took < 0) {
      ++broken;
      continue;
    }
    OperatorStatistics one;
    one.name = profile->names.intern(cells[name]);
    if (cells[type] != "N/A") one.type = profile->names.intern(cells[type]);
    one.kind = kind_of(cells[core], cells[type]);
    one.min_ns = *took;
    const auto begin = placed ? nanoseconds_of(cells[start]) : std::nullopt;
    if (begin && one.kind == OperatorKind::kCompute) {
      add_kernel(*begin, *took, one.name, profile->names.intern("Stream " + cells[stream]), &timeline);
    }
    const auto [at, fresh] =
        rows.emplace(uint64_t{one.name} << 32 | one.type, profile->operator_times.size());
    if (fresh) profile->operator_times.push_back(one);
    OperatorStatistics& sum = profile->operator_times[at->second];
    ++sum.count;
    sum.total_ns += *took;
    sum.min_ns = std::min(sum.min_ns, *took);
    sum.max_ns = std::max(sum.max_ns, *took);
    sum.squares += static_cast<double>(*took) * static_cast<double>(*took);
  }
  if (broken > 0) {
    profile->notes.push_back(
        fmt::format("kernel_details.csv: {} rows are cut off or have no duration", broken));
  }
}

void read_kernel_tables(Database* database, RankProfile* profile) {
  Rows rows = database->rows(
      "SELECT n.value, o.value, k.value, COUNT(*), SUM(t.endNs - t.startNs), MIN(t.endNs - t.startNs), "
      "MAX(t.endNs - t.startNs), SUM(1.0 * (t.endNs - t.startNs) * (t.endNs - t.startNs)) "
      "FROM COMPUTE_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId "
      "JOIN STRING_IDS n ON n.id = c.name LEFT JOIN STRING_IDS o ON o.id = c.opType "
      "LEFT JOIN STRING_IDS k ON k.id = c.taskType WHERE t.endNs >= t.startNs GROUP BY c.name, c.opType, "
      "c.taskType");
  while (rows.next()) {
    OperatorStatistics statistics;
    statistics.name = profile->names.intern(rows.text(0));
    if (const auto type = rows.text(1); !type.empty() && type != "N/A") {
      statistics.type = profile->names.intern(type);
    }
    statistics.kind = kind_of(rows.text(2), rows.text(1));
    statistics.count = static_cast<uint64_t>(rows.integer(3));
    statistics.total_ns = rows.integer(4);
    statistics.min_ns = rows.integer(5);
    statistics.max_ns = rows.integer(6);
    statistics.squares = rows.number(7);
    profile->operator_times.push_back(statistics);
  }
  Rows kernels = database->rows(
      fmt::format("SELECT t.startNs, t.endNs - t.startNs, n.value, {} FROM COMPUTE_TASK_INFO c "
                  "JOIN TASK t ON t.globalTaskId = c.globalTaskId JOIN STRING_IDS n ON n.id = c.name "
                  "LEFT JOIN STRING_IDS o ON o.id = c.opType LEFT JOIN STRING_IDS k ON k.id = c.taskType "
                  "WHERE t.endNs >= t.startNs AND IFNULL(k.value, '') NOT IN ('HCCL', 'COMMUNICATION') "
                  "AND IFNULL(o.value, '') NOT LIKE 'hcom\\_%' ESCAPE '\\'",
                  database->has_column("TASK", "streamId") ? "t.streamId" : "0"));
  TimelineCollector timeline(timeline_share(profile->world_size), &profile->timeline);
  while (kernels.next()) {
    const uint32_t name = profile->names.intern(kernels.text(2));
    const uint32_t track = profile->names.intern(fmt::format("Stream {}", kernels.integer(3)));
    add_kernel(kernels.integer(0), kernels.integer(1), name, track, &timeline);
  }
}

}  // namespace collective_ops
