#include "analysis/cluster.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "analysis/readers/ascend.h"
#include "analysis/shard.h"
#include "analysis/writers/ascend_cluster.h"
#include "analysis/writers/cluster_database.h"
#include "analysis/writers/operator_tables.h"
#include "analysis/writers/tables.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDatabase = "cluster_analysis.db", kTimeline = "timeline/cluster_timeline.json";

bool any_rank(const ProfileSet& set, bool (*has)(const RankProfile&)) {
  return std::any_of(set.ranks.begin(), set.ranks.end(), has);
}

// One result: which modes ask for it, what it needs, how it is written.
struct Output {
  std::string_view mode;
  std::string_view file;
  std::string_view needs;
  bool (*possible)(const ClusterReport&);
  Status (*write)(const ClusterReport&, const fs::path&);
};

const std::vector<Output>& outputs() {
  static const auto has_operators = [](const ClusterReport& report) {
    return any_rank(report.profiles, [](const RankProfile& profile) { return !profile.operators.empty(); });
  };
  static const auto has_links = [](const ClusterReport& report) {
    return any_rank(report.profiles, [](const RankProfile& profile) { return !profile.matrix.empty(); });
  };
  static const auto has_steps = [](const ClusterReport& report) {
    return any_rank(report.profiles, [](const RankProfile& profile) { return !profile.steps.empty(); });
  };
  static const auto has_calls = [](const ClusterReport& report) {
    return any_rank(report.profiles, [](const RankProfile& profile) { return !profile.calls.empty(); });
  };
  static const auto has_operator_times = [](const ClusterReport& report) {
    return any_rank(report.profiles,
                    [](const RankProfile& profile) { return !profile.operator_times.empty(); });
  };
  static const auto has_whole = [](const ClusterReport& report) {
    return any_rank(report.profiles, [](const RankProfile& profile) { return profile.whole.has_value(); });
  };
  static const auto has_messages = [](const ClusterReport& report) { return !report.messages.empty(); };
  // As the existing tool: a database where the profiles are databases.
  static const auto from_databases = [](const ClusterReport& report) {
    return any_rank(report.profiles,
                    [](const RankProfile& profile) { return profile.format == "ascend_db"; });
  };
  static const auto write_database = [](const ClusterReport& r, const fs::path& p) {
    return write_cluster_database(r.profiles, r.groups, p);
  };
  static const std::vector<Output> kOutputs = {
      {"step_trace", "cluster_step_trace_time.csv", "step times", has_steps,
       [](const ClusterReport& r, const fs::path& p) { return write_step_trace_time(r.profiles, p); }},
      {"step_trace", "summary.csv", "step times", has_steps,
       [](const ClusterReport& r, const fs::path& p) { return write_summary(r.profiles, r.waits, p); }},
      {"communication_time", "cluster_communication.json",
       "communication.json of Ascend profiles, Level1 or 2", has_operators,
       [](const ClusterReport& r, const fs::path& p) {
         return write_cluster_communication(r.profiles, r.groups, p);
       }},
      {"communication_time", "communication_group.json", "communication.json of Ascend profiles, Level1 or 2",
       has_operators,
       [](const ClusterReport& r, const fs::path& p) { return write_communication_group(r.groups, p); }},
      {"communication_matrix", "cluster_communication_matrix.json",
       "communication_matrix.json of Ascend profiles, Level1 or 2", has_links,
       [](const ClusterReport& r, const fs::path& p) {
         return write_cluster_matrix(r.profiles, r.groups, p);
       }},
      {"cluster_time_summary", "cluster_time_summary.csv", "step times", has_steps,
       [](const ClusterReport& r, const fs::path& p) { return write_time_summary(r.profiles, r.waits, p); }},
      {"hccl_sum", "hccl_sum.csv", "calls of collectives", has_calls,
       [](const ClusterReport& r, const fs::path& p) { return write_call_statistics(r.calls, p); }},
      {"communication", "communication.csv", "calls of collectives", has_calls,
       [](const ClusterReport& r, const fs::path& p) {
         return write_communication(communication_classes(r.profiles, r.waits), p);
       }},
      {"messages", "messages.csv", "sends and receives that name the other rank", has_messages,
       [](const ClusterReport& r, const fs::path& p) { return write_messages(r.messages, p); }},
      {"operator_time", "operator_time.csv", "operators or kernels", has_operator_times,
       [](const ClusterReport& r, const fs::path& p) {
         return write_operator_time(operator_table(r.profiles), p);
       }},
      {"compute_op_sum", "compute_op_sum.csv", "operators or kernels", has_operator_times,
       [](const ClusterReport& r, const fs::path& p) {
         return write_compute_types(compute_types(r.profiles), p);
       }},
      {"temporal_breakdown", "temporal_breakdown.csv", "traces of torch.profiler", has_whole,
       [](const ClusterReport& r, const fs::path& p) { return write_temporal_breakdown(r.profiles, p); }},
      {"slow_rank", "slow_rank.csv", "calls of collectives", has_calls,
       [](const ClusterReport& r, const fs::path& p) { return write_slow_ranks(r.profiles, r.waits, p); }},
      {"slow_link", "slow_link.csv", "communication_matrix.json of Ascend profiles, Level1 or 2", has_links,
       [](const ClusterReport& r, const fs::path& p) { return write_slow_links(r.links, p); }},
      {"timeline", kTimeline, "times of calls or kernels",
       [](const ClusterReport& r) { return r.timeline.events > 0; },
       [](const ClusterReport& r, const fs::path& p) {
         return write_cluster_timeline(r.profiles, r.waits, r.timeline, p);
       }},
      {"step_trace", kDatabase, "a db export", from_databases, write_database},
      {"communication_time", kDatabase, "a db export", from_databases, write_database},
      {"communication_matrix", kDatabase, "a db export", from_databases, write_database},
  };
  return kOutputs;
}

// In the directory of all ranks; beside a rank's own, which is not touched, where it alone was given.
fs::path results_beside(const fs::path& directory) {
  fs::path path = fs::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  return fs::is_directory(path, error) && !is_ascend_directory(path) ? path : path.parent_path();
}

bool wants_all(const ClusterOptions& options) { return options.mode == "all" || options.mode == "analysis"; }

Status write_all(const ClusterOptions& options, ClusterReport* report) {
  const bool all = wants_all(options);
  std::vector<const Output*> wanted;
  std::string_view needs;
  for (const Output& output : outputs()) {
    if (!all && output.mode != options.mode) continue;
    if (output.possible(*report)) {
      const bool twice = std::any_of(wanted.begin(), wanted.end(),
                                     [&](const Output* other) { return other->file == output.file; });
      if (!twice) wanted.push_back(&output);
    } else if (needs.empty()) {
      needs = output.needs;
    }
  }
  if (wanted.empty()) {
    return {ErrorCode::kInvalidArgument, fmt::format("mode {} needs {}; none of the {} profiles has it",
                                                     options.mode, needs, report->profiles.ranks.size())};
  }
  const fs::path first = options.shards.empty() ? options.inputs.front().path : options.shards.front();
  const fs::path folder =
      (options.output.empty() ? results_beside(first) : options.output) / "cluster_analysis_output";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return {ErrorCode::kSystem, fmt::format("cannot make {}: {}; choose another place with -o",
                                            folder.string(), error.message())};
  }
  for (const Output* output : wanted) {
    if (Status status = output->write(*report, folder / output->file); !status.ok()) return status;
    report->files.push_back(folder / output->file);
  }
  return {};
}

}  // namespace

const std::vector<ClusterMode>& cluster_modes() {
  static const std::vector<ClusterMode> kModes = {
      {"all", "everything below that the profiles have data for; also spelt analysis"},
      {"step_trace", "computing, communication, overlap, free of each step and rank"},
      {"communication_time", "each communication operator on each rank: elapsed, transit, wait, bandwidth"},
      {"communication_matrix", "each link: bytes, time, bandwidth"},
      {"cluster_time_summary", "step times, with communication split into waiting and transmitting"},
      {"hccl_sum", "how long collectives of each kind take: count, mean, quartiles, sum"},
      {"compute_op_sum", "how long compute kernels of each type take, over all ranks and on each"},
      {"operator_time", "how long each operator, kernel and copy takes, and how ranks differ"},
      {"communication",
       "collectives by group and size: bytes, waiting, moving, bandwidth, who holds them up"},
      {"messages", "sends and receives: which side waits for the other"},
      {"temporal_breakdown", "from the first to the last work: idle, computing, anything else"},
      {"slow_rank", "who comes late to collectives, what that costs, and why; or none"},
      {"slow_link", "links slower than others of their kind; or none"},
      {"timeline", "the longest events of all ranks on one clock, for Perfetto"},
  };
  return kModes;
}

Result<ClusterReport> analyze_cluster(const ClusterOptions& options) {
  const auto& modes = cluster_modes();
  if (options.mode != "analysis" && std::none_of(modes.begin(), modes.end(), [&](const ClusterMode& mode) {
        return mode.name == options.mode;
      })) {
    std::string names;
    for (const ClusterMode& mode : modes) names += fmt::format("{}{}", names.empty() ? "" : ", ", mode.name);
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("unknown mode {}; there are {}", options.mode, names));
  }
  auto profiles =
      options.shards.empty() ? read_profiles(options.inputs, options.reading) : read_shards(options.shards);
  if (!profiles.ok()) return profiles.status();
  ClusterReport report;
  report.profiles = std::move(*profiles);
  report.groups = find_groups(report.profiles);
  report.waits = analyze_waits(report.profiles);
  report.links = analyze_links(report.profiles, report.groups);
  report.calls = call_statistics(report.profiles);
  report.messages = analyze_messages(report.profiles, report.waits);
  if (wants_all(options) || options.mode == "timeline") {
    report.timeline = select_timeline(report.profiles, report.waits);
  }
  if (Status status = write_all(options, &report); !status.ok()) return status;
  return report;
}

Result<ShardReport> make_shard(const ClusterOptions& options, const fs::path& path) {
  ReadOptions reading = options.reading;
  reading.part_of_job = true;
  auto profiles = read_profiles(options.inputs, reading);
  if (!profiles.ok()) return profiles.status();
  ShardReport report{std::move(*profiles)};
  if (Status status = write_shard(&report.profiles, path); !status.ok()) return status;
  return report;
}

}  // namespace collective_ops
