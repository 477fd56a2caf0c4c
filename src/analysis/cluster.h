// `collective-ops analyze cluster`: reads the profiles of all ranks, analyses them and writes the results.
// Start here for the way from a directory to an answer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/call_statistics.h"
#include "analysis/cluster_groups.h"
#include "analysis/links.h"
#include "analysis/messages.h"
#include "analysis/profile_set.h"
#include "analysis/waits.h"
#include "analysis/writers/cluster_timeline.h"

namespace collective_ops {

struct ClusterMode {
  std::string_view name;
  std::string_view help;
};
const std::vector<ClusterMode>& cluster_modes();  // what -m takes, with its files

struct ClusterOptions {
  std::vector<ProfileInput> inputs;
  std::vector<std::filesystem::path> shards;  // in place of inputs
  // Results lie in cluster_analysis_output/ below it; empty: below the first input, or beside that where it
  // is a file or one rank's directory.
  std::filesystem::path output;
  std::string mode = "all";
  ReadOptions reading;
};

struct ClusterReport {
  ProfileSet profiles;
  ClusterGroups groups;
  WaitAnalysis waits;
  LinkAnalysis links;
  std::vector<CallStatistics> calls;
  std::vector<MessageRoute> messages;
  TimelineSelection timeline;                // empty where the mode does not ask for it
  std::vector<std::filesystem::path> files;  // written

  // Some profile is missing, damaged or left out: the results are right for the rest.
  bool partial() const { return !profiles.problems.empty() || !profiles.missing_ranks.empty(); }
  std::string text() const;  // for a terminal
  std::string json() const;  // the same for programs; docs/analysis.md lists its keys
};

// kInvalidArgument: an unknown mode, no usable profile, or nothing in the profiles for this mode (nothing
// is written then); kSystem: a result cannot be written; kInterrupted: `progress` said so.
Result<ClusterReport> analyze_cluster(const ClusterOptions& options);

// Reads `inputs` alone and keeps what was read in `path`, for an analysis of several such shards.
struct ShardReport {
  ProfileSet profiles;
  std::string text() const;
};
Result<ShardReport> make_shard(const ClusterOptions& options, const std::filesystem::path& path);

}  // namespace collective_ops
