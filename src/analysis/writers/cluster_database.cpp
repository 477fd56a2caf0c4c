#include "analysis/writers/cluster_database.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/sqlite.h"
#include "analysis/step_rows.h"
#include "analysis/writers/operator_total.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTotal = "Total Op Info";

constexpr const char* kTables[] = {
    "CREATE TABLE CommunicationGroupMapping (type TEXT, rank_set TEXT, group_name TEXT, group_id TEXT, "
    "pg_name TEXT)",
    "CREATE TABLE ClusterCommunicationTime (step TEXT, rank_id INTEGER, hccl_op_name TEXT, group_name TEXT, "
    "start_timestamp REAL, elapsed_time REAL, transit_time REAL, wait_time REAL, synchronization_time REAL, "
    "idle_time REAL, synchronization_time_ratio REAL, wait_time_ratio REAL)",
    "CREATE TABLE ClusterCommunicationBandwidth (step TEXT, rank_id INTEGER, hccl_op_name TEXT, group_name "
    "TEXT, "
    "band_type TEXT, transit_size REAL, transit_time REAL, bandwidth REAL, large_packet_ratio REAL, "
    "package_size REAL, count INTEGER, total_duration REAL)",
    "CREATE TABLE ClusterCommunicationMatrix (step TEXT, hccl_op_name TEXT, group_name TEXT, src_rank REAL, "
    "dst_rank REAL, transport_type TEXT, op_name TEXT, transit_size REAL, transit_time REAL, bandwidth REAL)",
    "CREATE TABLE ClusterStepTraceTime (step TEXT, type TEXT, \"index\" TEXT, computing NUMERIC, "
    "communication_not_overlapped NUMERIC, overlapped NUMERIC, communication NUMERIC, free NUMERIC, stage "
    "NUMERIC, "
    "bubble NUMERIC, communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC, "
    "dp_index INTEGER, pp_index INTEGER, tp_index INTEGER)",
    "CREATE TABLE HostInfo (hostUid TEXT, hostName TEXT)",
    "CREATE TABLE RankDeviceMap (rankId INTEGER, deviceId INTEGER, hostUid TEXT, profilePath TEXT)",
};

std::string rank_set(const std::vector<int>& ranks) { return fmt::format("({})", fmt::join(ranks, ",")); }

void insert_groups(const ClusterGroups& groups, Database* database) {
  Rows insert = database->rows("INSERT INTO CommunicationGroupMapping VALUES (?, ?, ?, ?, ?)");
  for (const auto* part : {&groups.by_hash, &groups.point_to_point}) {
    for (const auto& [hash, group] : *part) {
      insert.bind(group.point_to_point ? "p2p" : "collective").bind(rank_set(group.ranks)).bind(hash);
      insert.bind(group.id).bind(group.description).run();
    }
  }
}

class OperatorTables {
 public:
  explicit OperatorTables(Database* database)
      : times_(database->rows(
            "INSERT INTO ClusterCommunicationTime VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")),
        bandwidth_(database->rows(
            "INSERT INTO ClusterCommunicationBandwidth VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")) {}

  struct Key {
    std::string_view step;
    int rank;
    std::string_view name, group;
  };
  void add_times(const Key& key, const OperatorTimes& times) {
    start(&times_, key).bind(times.start_us).bind(times.elapse_ms).bind(times.transit_ms).bind(times.wait_ms);
    times_.bind(times.synchronization_ms).bind(times.idle_ms);
    times_.bind(ratio(times.synchronization_ms, times.transit_ms))
        .bind(ratio(times.wait_ms, times.transit_ms))
        .run();
  }
  // One row per size of packet; a sum over kinds of links has one row without sizes.
  void add_link(const Key& key, std::string_view link, const LinkTraffic& traffic) {
    static const std::vector<SizeClass> kNone(1);
    for (const SizeClass& size : traffic.sizes.empty() ? kNone : traffic.sizes) {
      start(&bandwidth_, key).bind(link).bind(traffic.megabytes).bind(traffic.milliseconds);
      bandwidth_.bind(traffic.gigabytes_per_second).bind(traffic.large_packet_ratio);
      bandwidth_.bind(size.megabytes).bind(static_cast<int64_t>(size.count)).bind(size.milliseconds).run();
    }
  }

 private:
  static Rows& start(Rows* rows, const Key& key) {
    return rows->bind(key.step).bind(key.rank).bind(key.name).bind(key.group);
  }
  Rows times_, bandwidth_;
};

void insert_operators(const ProfileSet& set, Database* database) {
  OperatorTables tables(database);
  for (const RankProfile& profile : set.ranks) {
    std::map<std::pair<uint32_t, uint32_t>, OperatorTotal> totals;  // by step and group
    for (const CommunicationOperator& op : profile.operators) {
      const OperatorTables::Key key{profile.names[op.step], profile.rank, profile.names[op.name],
                                    profile.names[op.group]};
      tables.add_times(key, op.times);
      for (const LinkTraffic& link : op.links) tables.add_link(key, profile.names[link.link], link);
      totals[{op.step, op.group}].add(profile, op);
    }
    for (auto& [where, total] : totals) {
      const OperatorTables::Key key{profile.names[where.first], profile.rank, kTotal,
                                    profile.names[where.second]};
      tables.add_times(key, total.times);
      for (auto& [name, link] : total.links) {
        link.gigabytes_per_second = bandwidth(link.megabytes, link.milliseconds);
        tables.add_link(key, name, link);
      }
    }
  }
}

struct LinkTotal {
  std::string_view transport;
  double megabytes = 0, milliseconds = 0;
};

void insert_links(const ProfileSet& set, const ClusterGroups& groups, Database* database) {
  Rows insert =
      database->rows("INSERT INTO ClusterCommunicationMatrix VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  using Key = std::tuple<std::string_view, std::string_view, int, int>;  // step, group, source, destination
  std::map<Key, LinkTotal> totals;
  const auto add = [&](const Key& key, std::string_view name, std::string_view operator_name,
                       const LinkTotal& link) {
    const auto& [step, group, source, destination] = key;
    insert.bind(step)
        .bind(name)
        .bind(group)
        .bind(static_cast<double>(source))
        .bind(static_cast<double>(destination));
    insert.bind(link.transport).bind(operator_name).bind(link.megabytes).bind(link.milliseconds);
    insert.bind(link.milliseconds > 0 ? link.megabytes / link.milliseconds : 0.0).run();
  };
  for (const RankProfile& profile : set.ranks) {
    for (const MatrixEntry& entry : profile.matrix) {
      const std::string_view hash = profile.names[entry.group], name = profile.names[entry.name];
      const auto& part = entry.point_to_point ? groups.point_to_point : groups.by_hash;
      const std::vector<int>& locals = part.find(std::string(hash))->second.locals;
      const auto last = static_cast<int>(locals.size());
      if (entry.source >= last || entry.destination >= last) continue;
      const Key key{profile.names[entry.step], hash, locals[static_cast<size_t>(entry.source)],
                    locals[static_cast<size_t>(entry.destination)]};
      const LinkTotal link{profile.names[entry.transport], entry.megabytes, entry.milliseconds};
      add(key, name, profile.names[entry.operator_name], link);
      if (!name.ends_with("-total") && !entry.point_to_point) continue;
      LinkTotal& total = totals[key];
      total.transport = link.transport;
      total.megabytes += link.megabytes;
      total.milliseconds += link.milliseconds;
    }
  }
  for (const auto& [key, total] : totals) add(key, kTotal, "", total);
}

void insert_steps(const ProfileSet& set, Database* database) {
  Rows insert =
      database->rows("INSERT INTO ClusterStepTraceTime VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  const auto add = [&](const StepTime& time, std::string_view type, const std::string& index,
                       const RankPlace& place) {
    insert.bind(time.step).bind(type).bind(index).bind(time.computing_us).bind(time.exposed_us);
    insert.bind(time.overlapped_us).bind(time.communication_us).bind(time.free_us).bind(time.stage_us);
    insert.bind(time.bubble_us).bind(time.exposed_without_bubble_us).bind(time.preparing_us.value_or(0));
    insert.bind(place.data).bind(place.pipeline).bind(place.tensor).run();
  };
  for (const RankProfile& profile : set.ranks) {
    for (const StepTime& time : profile.steps)
      add(time, "rank", std::to_string(profile.rank), place_of(profile));
  }
  for (const StageTime& stage : stage_times(set)) add(*stage.time, "stage", rank_set(stage.ranks), {});
}

void insert_hosts(const ProfileSet& set, Database* database) {
  Rows host = database->rows("INSERT INTO HostInfo VALUES (?, ?)");
  Rows device = database->rows("INSERT INTO RankDeviceMap VALUES (?, ?, ?, ?)");
  std::map<std::string, std::string> hosts;
  for (const RankProfile& profile : set.ranks) {
    hosts.emplace(profile.host_uid, profile.host);
    device.bind(profile.rank).bind(profile.device).bind(profile.host_uid).bind(profile.source).run();
  }
  for (const auto& [uid, name] : hosts) host.bind(uid).bind(name).run();
}

}  // namespace

Status write_cluster_database(const ProfileSet& set, const ClusterGroups& groups, const fs::path& path) {
  return Database::write(path, [&](Database* database) {
    for (const char* table : kTables) database->run(table);
    insert_groups(groups, database);
    insert_operators(set, database);
    insert_links(set, groups, database);
    insert_steps(set, database);
    insert_hosts(set, database);
  });
}

}  // namespace collective_ops
