// Runs of a job whose profiles lie in one folder: the newest is analysed, the others are left out by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "analysis/profile.h"

namespace collective_ops {

// What profiler_info says of a directory that our profiler made; nothing is set for those of others.
ProfiledRun run_of_directory(const std::filesystem::path& directory);

struct RunCandidate {
  const RankProfile* profile = nullptr;
  int64_t window = -1;    // of a rank that was profiled several times in one run
  int64_t path_time = 0;  // as time_in_path()
};

// Newer profiles of the same rank and window stand first.
bool is_newer(const RunCandidate& a, const RunCandidate& b);

// By candidate why it is of an older run, "" where it is not known to be: its run has another id than the one
// that began last; or it was recorded while one was that a newer profile of the same rank replaces, and had
// ended before any of those that replace some began.
std::vector<std::string> older_runs(const std::vector<RunCandidate>& candidates);

}  // namespace collective_ops
