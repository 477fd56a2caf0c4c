// Finds the profiles below files and directories and reads all of them, in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/discovery.h"
#include "analysis/profile.h"

namespace collective_ops {

struct ReadOptions {
  int threads = 0;  // 0: one per core
  // Of files whose content does not say their rank; stands above what their names say.
  std::map<std::filesystem::path, int> ranks;
  // Profiles of other ranks may lie elsewhere: a lone one that does not say its rank is not rank 0.
  bool part_of_job = false;
  std::vector<ProfileProblem> problems;  // what is known before: archives that cannot be unpacked
  // Called now and then from the calling thread; false ends the reading with kInterrupted.
  std::function<bool(size_t done, size_t total)> progress;
};

// A rank or a size of a job beyond it is damage: no list of ranks must fill the memory.
constexpr int kMostRanks = 1 << 20;

struct ProfileSet {
  std::vector<RankProfile> ranks;        // ascending, each rank once
  std::vector<ProfileProblem> problems;  // files that could not be used, or not wholly
  std::vector<std::string> ignored;      // JSON files that are no profiles
  std::vector<int> missing_ranks;        // of the job, as far as its size is known
  int world_size = 0;                    // 0: unknown
  uint64_t bytes = 0, events = 0;
};

// kInvalidArgument: there is no such file or directory, or no profile that can be used.
Result<ProfileSet> read_profiles(const std::vector<ProfileInput>& inputs, const ReadOptions& options);

// Puts everything in order and finds what is missing; once all ranks are there.
void complete(ProfileSet* set);

}  // namespace collective_ops
