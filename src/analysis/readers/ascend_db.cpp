#include "analysis/readers/ascend_db.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/readers/ascend.h"
#include "analysis/readers/ascend_communication.h"
#include "analysis/readers/ascend_kernels.h"
#include "analysis/readers/ascend_waits.h"
#include "analysis/sqlite.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

void read_steps(Database* database, RankProfile* profile) {
  if (!database->has_table("StepTraceTime")) return;
  const bool preparing = database->has_column("StepTraceTime", "preparing");
  Rows rows = database->rows(fmt::format(
      "SELECT step, computing, communication_not_overlapped, overlapped, communication, free, stage, bubble, "
      "communication_not_overlapped_and_exclude_receive{} FROM StepTraceTime",
      preparing ? ", preparing" : ""));
  while (rows.next()) {
    StepTime time;
    time.step = rows.text(0);
    time.computing_us = rows.number(1);
    time.exposed_us = rows.number(2);
    time.overlapped_us = rows.number(3);
    time.communication_us = rows.number(4);
    time.free_us = rows.number(5);
    time.stage_us = rows.number(6);
    time.bubble_us = rows.number(7);
    time.exposed_without_bubble_us = rows.number(8);
    if (preparing) time.preparing_us = rows.number(9);
    profile->steps.push_back(std::move(time));
  }
}

void read_operators(Database* database, RankProfile* profile) {
  if (!database->has_table("CommAnalyzerTime")) return;
  NameTable& names = profile->names;
  std::vector<CommunicationOperator> operators;
  std::unordered_map<std::string, size_t> row_of;
  const auto key = [](std::string_view step, std::string_view name, std::string_view group) {
    return fmt::format("{}|{}|{}", step, name, group);
  };
  Rows rows = database->rows(
      "SELECT step, hccl_op_name, group_name, type, start_timestamp, elapse_time, transit_time, wait_time, "
      "synchronization_time, idle_time FROM CommAnalyzerTime");
  while (rows.next()) {
    if (rows.text(1) == "Total Op Info") continue;
    CommunicationOperator op;
    op.step = names.intern(rows.text(0));
    op.name = names.intern(rows.text(1));
    op.group = names.intern(rows.text(2));
    op.point_to_point = rows.text(3) == "p2p";
    op.times = {rows.number(4), rows.number(5), rows.number(6),
                rows.number(7), rows.number(8), rows.number(9)};
    row_of.emplace(key(names[op.step], names[op.name], names[op.group]), operators.size());
    operators.push_back(std::move(op));
  }
  if (database->has_table("CommAnalyzerBandwidth")) {
    Rows sizes = database->rows(
        "SELECT step, hccl_op_name, group_name, transport_type, transit_size, transit_time, bandwidth, "
        "large_packet_ratio, package_size, count, total_duration FROM CommAnalyzerBandwidth");
    while (sizes.next()) {
      const auto at = row_of.find(key(sizes.text(0), sizes.text(1), sizes.text(2)));
      if (at == row_of.end()) continue;
      std::vector<LinkTraffic>& links = operators[at->second].links;
      const uint32_t link = names.intern(sizes.text(3));
      if (links.empty() || links.back().link != link) {  // one row per size of packet
        links.push_back({link, sizes.number(4), sizes.number(5), sizes.number(6), sizes.number(7), {}});
      }
      const SizeClass size{sizes.number(8), sizes.number(9), sizes.number(10)};
      if (size.count > 0) links.back().sizes.push_back(size);
    }
  }
  for (CommunicationOperator& op : operators) add_operator(std::move(op), profile);
  std::sort(profile->calls.begin(), profile->calls.end(),
            [](const ProfiledCall& a, const ProfiledCall& b) { return a.start_ns < b.start_ns; });
}

void read_matrix(Database* database, RankProfile* profile) {
  if (!database->has_table("CommAnalyzerMatrix")) return;
  NameTable& names = profile->names;
  Rows rows = database->rows(
      "SELECT step, hccl_op_name, group_name, type, CAST(src_rank AS INTEGER), CAST(dst_rank AS INTEGER), "
      "transport_type, op_name, transit_size, transit_time, bandwidth FROM CommAnalyzerMatrix");
  while (rows.next()) {
    const int64_t source = rows.integer(4), destination = rows.integer(5);
    if (rows.text(1) == "Total Op Info" || source < 0 || destination < 0 || source > INT32_MAX ||
        destination > INT32_MAX) {
      continue;
    }
    MatrixEntry entry;
    entry.step = names.intern(rows.text(0));
    entry.name = names.intern(rows.text(1));
    entry.group = names.intern(rows.text(2));
    entry.point_to_point = rows.text(3) == "p2p";
    entry.source = static_cast<int>(source);
    entry.destination = static_cast<int>(destination);
    entry.transport = names.intern(rows.text(6));
    entry.operator_name = names.intern(rows.text(7));
    entry.megabytes = rows.number(8);
    entry.milliseconds = rows.number(9);
    entry.gigabytes_per_second = rows.number(10);
    profile->matrix.push_back(entry);
  }
}

void read_facts(Database* database, RankProfile* profile) {
  if (database->has_table("META_DATA")) {
    std::string metadata = "{";
    Rows rows = database->rows(
        "SELECT name, value FROM META_DATA WHERE name IN ('distributed_args', 'parallel_group_info')");
    while (rows.next()) {
      metadata += fmt::format("{}\"{}\": {}", metadata.size() > 1 ? ", " : "", rows.text(0), rows.text(1));
    }
    read_ascend_metadata(metadata + "}", profile);
  }
  if (database->has_table("HOST_INFO")) {
    Rows rows = database->rows("SELECT hostUid, hostName FROM HOST_INFO");
    if (rows.next()) {
      profile->host_uid = rows.text(0);
      profile->host = rows.text(1);
    }
  }
  if (database->has_table("RANK_DEVICE_MAP")) {
    Rows rows = database->rows("SELECT deviceId FROM RANK_DEVICE_MAP");
    if (rows.next()) profile->device = static_cast<int>(rows.integer(0));
  }
}

// Group ids stand here as text, and elsewhere as their hash.
void read_group_ids(Database* database, RankProfile* profile) {
  Rows rows = database->rows(
      "SELECT DISTINCT s.value FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.groupName");
  while (rows.next()) {
    ProfiledGroup group{ascend_group_hash(rows.text(0)), std::string(rows.text(0)), "", {}};
    const bool known = std::any_of(profile->groups.begin(), profile->groups.end(),
                                   [&](const ProfiledGroup& other) { return other.hash == group.hash; });
    if (!known && !group.id.empty()) profile->groups.push_back(std::move(group));
  }
}

void read_waits(Database* database, RankProfile* profile) {
  struct Wait {
    int64_t peer, nanoseconds;  // the longest single wait of any plane
  };
  std::unordered_map<std::string, std::vector<Wait>> waits;  // by operator and group
  Rows rows = database->rows(
      "SELECT n.value, g.value, i.dstRank, MAX(t.endNs - t.startNs) FROM COMMUNICATION_TASK_INFO i "
      "JOIN TASK t ON t.globalTaskId = i.globalTaskId JOIN STRING_IDS k ON k.id = i.taskType "
      "JOIN COMMUNICATION_OP o ON o.opId = i.opId JOIN STRING_IDS n ON n.id = o.opName "
      "JOIN STRING_IDS g ON g.id = o.groupName "
      "WHERE k.value IN ('Notify_Wait', 'Notify Wait') GROUP BY i.opId, i.dstRank");
  while (rows.next()) {
    waits[fmt::format("{}@{}", rows.text(0), ascend_group_hash(rows.text(1)))].push_back(
        {rows.integer(2), rows.integer(3)});
  }
  for (ProfiledCall& call : profile->calls) {
    const auto at =
        waits.find(fmt::format("{}@{}", profile->names[call.operator_name], profile->names[call.group]));
    if (at == waits.end()) continue;
    for (const Wait& wait : at->second) set_longest_wait(wait.peer, wait.nanoseconds, profile, &call);
  }
}

template <typename Read>
bool read_database(const fs::path& path, RankProfile* profile, const Read& read) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  auto database = Database::open_input(path);
  if (!database.ok()) {
    profile->notes.push_back(database.status().message());
    return true;
  }
  read(database->get());
  profile->bytes += fs::file_size(path, error);
  const std::string name = path.filename().string();
  if (!(*database)->problem().empty())
    profile->notes.push_back(fmt::format("{}: {}", name, (*database)->problem()));
  fs::path log = path;
  log += "-wal";
  if (fs::exists(log, error) && fs::file_size(log, error) > 0) {
    profile->notes.push_back(fmt::format("{}: what its write-ahead log holds is not read", name));
  }
  return true;
}

}  // namespace

bool read_ascend_databases(const fs::path& output, RankProfile* profile) {
  bool found = false;
  for (const char* name : {"analysis.db", "communication_analyzer.db"}) {
    found |= read_database(output / name, profile, [&](Database* database) {
      read_steps(database, profile);
      read_operators(database, profile);
      read_matrix(database, profile);
    });
  }
  std::error_code error;
  std::vector<fs::path> own;
  for (fs::directory_iterator at(output, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool profiler =
        name.starts_with("ascend_pytorch_profiler") || name.starts_with("ascend_mindspore_profiler");
    if (profiler && name.ends_with(".db")) own.push_back(at->path());
  }
  std::sort(own.begin(), own.end());
  for (const fs::path& path : own) {
    found |= read_database(path, profile, [&](Database* database) {
      read_facts(database, profile);
      if (database->has_table("COMPUTE_TASK_INFO") && database->has_table("TASK") &&
          database->has_table("STRING_IDS") && profile->operator_times.empty()) {
        read_kernel_tables(database, profile);
      }
      if (!database->has_table("COMMUNICATION_OP") || !database->has_table("STRING_IDS")) return;
      read_group_ids(database, profile);
      if (database->has_table("COMMUNICATION_TASK_INFO") && database->has_table("TASK"))
        read_waits(database, profile);
    });
  }
  return found;
}

}  // namespace collective_ops
