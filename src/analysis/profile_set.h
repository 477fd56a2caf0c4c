// Finds the profiles below a directory and reads all of them, in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/profile.h"

namespace collective_ops {

struct ReadOptions {
  int threads = 0;  // 0: one per core
  // Called now and then from the calling thread; false ends the reading with kInterrupted.
  std::function<bool(size_t done, size_t total)> progress;
};

struct ProfileProblem {
  std::string path;
  std::string text;
};

struct ProfileSet {
  std::vector<RankProfile> ranks;        // ascending, each rank once
  std::vector<ProfileProblem> problems;  // files that could not be used, or not wholly
  std::vector<std::string> ignored;      // JSON files that are no profiles
  std::vector<int> missing_ranks;        // of the job, as far as its size is known
  int world_size = 0;                    // 0: unknown
  uint64_t bytes = 0, events = 0;
};

// kInvalidArgument: there is no such directory, or no profile in it that can be used.
Result<ProfileSet> read_profiles(const std::filesystem::path& directory, const ReadOptions& options);

// The rank that a path speaks of: rank3, rank_3, rank[3], worker3, r3-..., or a directory called 3; -1
// where there is none.
int rank_in_path(const std::filesystem::path& path);

}  // namespace collective_ops
