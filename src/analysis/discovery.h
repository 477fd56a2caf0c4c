// What there is to read: the profiles below directories, and what their paths say of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace collective_ops {

// A file or a directory to read. `shown` stands for `path` in all results: of an unpacked archive, its name.
struct ProfileInput {
  std::filesystem::path path;
  std::string shown;  // "": as `path`
};

struct ProfileProblem {
  std::string path;
  std::string text;
};

struct FoundProfile {
  std::filesystem::path path;
  std::string shown;
  bool ascend = false;  // a rank's directory
};

struct Discovery {
  std::vector<FoundProfile> found;       // by path, in the order of the inputs; each once
  std::vector<ProfileProblem> problems;  // directories that cannot be read
};

Discovery discover(const std::vector<ProfileInput>& inputs);

// The rank that a path speaks of: rank3, rank_3, rank[3], worker3, r3-..., or a directory called 3; -1
// where there is none.
int rank_in_path(const std::filesystem::path& path);

// Of a rank that was profiled several times, which time: iteration_10/..., ..._step_10.json; -1 without.
int64_t window_in_path(const std::filesystem::path& path);

// When a profiler named it: the longest number in its name of 13 digits or more (milliseconds since 1970, or
// a date and time); 0 without.
int64_t time_in_path(const std::filesystem::path& path);

}  // namespace collective_ops
