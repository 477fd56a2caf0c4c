#include "analysis/writers/operator_tables.h"

#include <string>

#include <fmt/format.h>

#include "analysis/writers/output_file.h"

namespace collective_ops {
namespace {

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// Empty where it is not known.
std::string known(double value, bool is_known) { return is_known ? fmt::format("{}", value) : std::string(); }
std::string rank_cell(int rank) { return rank < 0 ? std::string() : std::to_string(rank); }

}  // namespace

Status write_operator_time(const std::vector<OperatorRow>& rows, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print(
      "operator,type,kind,count,total_us,average_us,min_us,max_us,share,least_rank_us,least_rank,most_rank_"
      "us,"
      "most_rank\n");
  for (const OperatorRow& row : rows) {
    (*file)->print("{},{},{},{},{},{:.3f},{},{},{:.6f},{},{},{},{}\n", csv_cell(row.name), csv_cell(row.type),
                   name_of(row.kind), row.count, microseconds(row.total_ns), row.mean_ns() / 1e3,
                   microseconds(row.min_ns), microseconds(row.max_ns), row.share, microseconds(row.least_ns),
                   row.least_rank, microseconds(row.most_ns), row.most_rank);
  }
  return (*file)->finish();
}

Status write_compute_types(const std::vector<OperatorRow>& rows, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print("OpType,Rank,Count,MeanNs,StdNs,MinNs,MaxNs,SumNs,Share\n");
  for (const OperatorRow& row : rows) {
    (*file)->print("{},{},{},{:.3f},{:.3f},{},{},{},{:.6f}\n", csv_cell(row.type),
                   row.rank < 0 ? std::string("all") : std::to_string(row.rank), row.count, row.mean_ns(),
                   row.deviation_ns(), row.min_ns, row.max_ns, row.total_ns, row.share);
  }
  return (*file)->finish();
}

Status write_communication(const std::vector<CommunicationClass>& rows, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print(
      "group,collective,size_class,calls,calls_of_one_rank,bytes,elapsed_ms,waiting_ms,moving_ms,algbw_gb_s,"
      "busbw_gb_s,slowest_rank,latest_rank\n");
  for (const CommunicationClass& row : rows) {
    const bool matched = row.calls > 0;
    (*file)->print("{},{},{},{},{},{},{:.6f},{},{},{},{},{},{}\n", csv_cell(row.group),
                   csv_cell(row.collective), row.size_class, row.calls, row.single,
                   row.bytes > 0 ? fmt::format("{:.0f}", row.bytes) : std::string(), row.elapsed_ms,
                   matched ? fmt::format("{:.6f}", row.waiting_ms) : std::string(),
                   matched ? fmt::format("{:.6f}", row.moving_ms) : std::string(),
                   known(row.algorithm_gb_s, row.algorithm_gb_s > 0), known(row.bus_gb_s, row.bus_gb_s > 0),
                   rank_cell(row.slowest_rank), rank_cell(row.latest_rank));
  }
  return (*file)->finish();
}

Status write_messages(const std::vector<MessageRoute>& routes, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print("source,destination,group,messages,unpaired,late_sender_ms,late_receiver_ms,moving_ms\n");
  for (const MessageRoute& route : routes) {
    (*file)->print("{},{},{},{},{},{:.6f},{:.6f},{:.6f}\n", route.source, route.destination,
                   csv_cell(route.group), route.messages, route.unpaired, route.late_sender_ms,
                   route.late_receiver_ms, route.moving_ms);
  }
  return (*file)->finish();
}

Status write_temporal_breakdown(const ProfileSet& set, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print(
      "rank,window_us,idle_us,compute_us,non_compute_us,idle_share,compute_share,non_compute_share\n");
  for (const RankProfile& profile : set.ranks) {
    if (!profile.whole) continue;
    const StepTime& whole = *profile.whole;
    const double window = microseconds(whole.end_ns - whole.begin_ns);
    const double idle = whole.free_us - whole.copies_us;
    const double other = window - idle - whole.computing_us;
    const double scale = window > 0 ? 1 / window : 0;
    (*file)->print("{},{:.3f},{:.3f},{:.3f},{:.3f},{:.6f},{:.6f},{:.6f}\n", profile.rank, window, idle,
                   whole.computing_us, other, idle * scale, whole.computing_us * scale, other * scale);
  }
  return (*file)->finish();
}

}  // namespace collective_ops
