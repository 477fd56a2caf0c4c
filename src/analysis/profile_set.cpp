#include "analysis/profile_set.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "analysis/readers/ascend.h"
#include "analysis/readers/chrome_trace.h"
#include "analysis/step_time.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 16;

struct Input {
  fs::path path;
  bool ascend = false;
};

struct Reading {
  std::vector<RankProfile> profiles;
  std::string problem;   // why nothing of it can be used
  bool ignored = false;  // it is JSON, and no profile
};

// Files that lie beside profiles and are none.
bool is_other_json(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kOthers = {
      "profiler_info", "profiler_metadata", "communication", "cluster_", "op_args", "memory_"};
  return std::any_of(kOthers.begin(), kOthers.end(),
                     [&](std::string_view part) { return name.starts_with(part); });
}

class Discovery {
 public:
  void visit(const fs::path& directory, int depth);
  std::vector<Input> inputs;
  std::vector<ProfileProblem> problems;

 private:
  std::set<fs::path> seen_;  // a link that leads back is followed once
};

void Discovery::visit(const fs::path& directory, int depth) {
  std::error_code error;
  if (depth > kDeepest || !seen_.insert(fs::canonical(directory, error)).second) return;
  if (is_ascend_directory(directory)) {
    inputs.push_back({directory, true});
    return;
  }
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error) problems.push_back({directory.string(), "cannot be read: " + error.message()});
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (fs::is_directory(entry, error)) {
      if (name != "cluster_analysis_output") visit(entry, depth + 1);
    } else if ((name.ends_with(".json") || name.ends_with(".json.gz")) && !is_other_json(name) &&
               fs::is_regular_file(entry, error)) {
      inputs.push_back({entry, false});
    }
  }
}

Reading read_chrome(const Input& input) {
  Reading reading;
  auto trace = read_chrome_trace(input.path);
  if (!trace.ok()) {
    reading.problem = trace.status().message();
    const std::string& text = reading.problem;
    reading.ignored = text.ends_with("no traceEvents") && rank_in_path(input.path) < 0;
    return reading;
  }
  if (trace->events.size() == 0) {
    reading.ignored = trace->damage.text.empty() && trace->damage.events == 0;
    reading.problem = "no event in it can be used" +
                      (trace->damage.text.empty() ? std::string() : "; " + trace->damage.text);
    return reading;
  }
  if (trace->header.all_ranks) {
    const auto groups = trace->header.groups;
    const int world_size = trace->header.world_size;
    reading.profiles = summarize_all_ranks(*trace);
    for (RankProfile& profile : reading.profiles) {
      profile.format = "comm_trace";
      profile.world_size = world_size;
      for (const auto& group : groups) {
        if (!std::binary_search(group.ranks.begin(), group.ranks.end(), profile.rank)) continue;
        profile.groups.push_back({group.name, "", group.description, group.ranks});
      }
    }
    return reading;
  }
  RankProfile profile;
  const TraceHeader header = trace->header;
  profile.rank = header.rank.value_or(rank_in_path(input.path));
  profile.format = "kineto";
  profile.host = header.host;
  profile.world_size = header.world_size;
  for (const auto& group : header.groups) {
    profile.groups.push_back({group.name, "", group.description, group.ranks});
  }
  summarize_trace(std::move(*trace), &profile);
  reading.profiles.push_back(std::move(profile));
  return reading;
}

Reading read_one(const Input& input) {
  Reading reading;
  if (!input.ascend) {
    reading = read_chrome(input);
  } else {
    auto profile = read_ascend_directory(
        input.path, rank_of_ascend_directory(input.path).value_or(rank_in_path(input.path)));
    if (profile.ok()) {
      reading.profiles.push_back(std::move(*profile));
    } else {
      reading.problem = profile.status().message();
    }
  }
  for (RankProfile& profile : reading.profiles) profile.source = input.path.string();
  return reading;
}

// Every input by its own thread at a time; the calling thread watches.
Status read_all(const std::vector<Input>& inputs, const ReadOptions& options,
                std::vector<Reading>* readings) {
  readings->resize(inputs.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::condition_variable finished;
  size_t done = 0;
  std::atomic<bool> stopped{false};
  const auto work = [&] {
    for (size_t i = next++; i < inputs.size() && !stopped; i = next++) {
      Reading reading;
      try {
        reading = read_one(inputs[i]);
      } catch (const std::exception& error) {  // memory that is not there, above all
        reading = {};
        reading.problem = fmt::format("reading failed: {}", error.what());
      }
      const std::lock_guard lock(mutex);
      (*readings)[i] = std::move(reading);
      ++done;
      finished.notify_one();
    }
  };
  size_t count =
      options.threads > 0 ? static_cast<size_t>(options.threads) : std::thread::hardware_concurrency();
  count = std::clamp<size_t>(count, 1, inputs.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  std::unique_lock lock(mutex);
  while (done < inputs.size() && !stopped) {
    finished.wait_for(lock, std::chrono::milliseconds(200));
    const size_t seen = done;
    lock.unlock();
    if (options.progress && !options.progress(seen, inputs.size())) stopped = true;
    lock.lock();
  }
  lock.unlock();
  threads.clear();  // joins: the files that are being read are read to their end
  // Once more, so that even a short analysis has been asked.
  if (!stopped && options.progress && !options.progress(done, inputs.size())) stopped = true;
  if (stopped) return {ErrorCode::kInterrupted, "the analysis was interrupted; nothing was written"};
  return {};
}

// Each rank once; a second profile of one is named together with the first.
void keep_unique(std::vector<Input>* inputs, std::vector<Reading>* readings, ProfileSet* set) {
  std::map<int, size_t> first;
  for (size_t i = 0; i < inputs->size(); ++i) {
    Reading& reading = (*readings)[i];
    const std::string path = (*inputs)[i].path.string();
    if (reading.ignored) {
      set->ignored.push_back(path);
      continue;
    }
    if (!reading.problem.empty()) set->problems.push_back({path, reading.problem});
    for (RankProfile& profile : reading.profiles) {
      for (const std::string& note : profile.notes) set->problems.push_back({path, note});
      set->bytes += profile.bytes;
      set->events += profile.events;
      if (profile.rank < 0) profile.rank = inputs->size() == 1 ? 0 : -1;
      if (profile.rank < 0) {
        set->problems.push_back({path, "neither its content nor its name says of which rank it is"});
      } else if (const auto [at, fresh] = first.emplace(profile.rank, set->ranks.size()); fresh) {
        set->ranks.push_back(std::move(profile));
      } else {
        set->problems.push_back({path, fmt::format("is of rank {}, as {} is, which was taken; move one away",
                                                   profile.rank, set->ranks[at->second].source)});
      }
    }
  }
  std::sort(set->ranks.begin(), set->ranks.end(),
            [](const RankProfile& a, const RankProfile& b) { return a.rank < b.rank; });
}

// The size of the job: as said, else as the members of its groups and links show it.
void find_missing(ProfileSet* set) {
  int size = 0;
  for (const RankProfile& profile : set->ranks) {
    size = std::max({size, profile.world_size, profile.rank + 1});
    for (const ProfiledGroup& group : profile.groups) {
      if (!group.ranks.empty()) size = std::max(size, group.ranks.back() + 1);
    }
    const bool world_links =
        std::all_of(profile.groups.begin(), profile.groups.end(),
                    [](const ProfiledGroup& group) { return group.ranks.empty(); }) &&
        std::any_of(profile.matrix.begin(), profile.matrix.end(), [&](const MatrixEntry& e) {
          return e.source == profile.rank && e.destination == profile.rank;
        });
    for (const MatrixEntry& entry : profile.matrix) {
      if (world_links) size = std::max({size, entry.source + 1, entry.destination + 1});
    }
  }
  set->world_size = size;
  for (int rank = 0, i = 0; rank < size; ++rank) {
    if (i < static_cast<int>(set->ranks.size()) && set->ranks[static_cast<size_t>(i)].rank == rank) {
      ++i;
    } else {
      set->missing_ranks.push_back(rank);
    }
  }
}

std::optional<int> digits_at(std::string_view text, size_t at) {
  int64_t value = 0;
  size_t i = at;
  for (; i < text.size() && i < at + 9 && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i) {
    value = value * 10 + (text[i] - '0');
  }
  return i == at ? std::nullopt : std::optional<int>(static_cast<int>(value));
}

std::optional<int> rank_in_name(const std::string& name) {
  for (const std::string_view word : {"rank", "worker"}) {
    for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
      size_t digits = at + word.size();
      if (digits < name.size() && std::string_view("-_[").find(name[digits]) != std::string_view::npos)
        ++digits;
      if (const auto rank = digits_at(name, digits)) return rank;
    }
  }
  if (name.size() > 1 && name[0] == 'r') {
    const auto rank = digits_at(name, 1);
    if (rank && name[name.find_first_not_of("0123456789", 1)] == '-') return rank;
  }
  return {};
}

}  // namespace

int rank_in_path(const fs::path& path) {
  if (const auto rank = rank_in_name(path.filename().string())) return *rank;
  const std::string parent = path.parent_path().filename().string();
  if (const auto rank = rank_in_name(parent)) return *rank;
  const bool number =
      !parent.empty() && parent.size() < 7 && parent.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoi(parent) : -1;
}

Result<ProfileSet> read_profiles(const fs::path& directory, const ReadOptions& options) {
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("there is no directory {}", directory.string()));
  }
  Discovery discovery;
  if (fs::is_directory(directory, error)) {
    discovery.visit(directory, 0);
  } else {
    discovery.inputs.push_back({directory, false});
  }
  ProfileSet set;
  set.problems = std::move(discovery.problems);
  if (!discovery.inputs.empty()) {
    std::vector<Reading> readings;
    if (Status status = read_all(discovery.inputs, options, &readings); !status.ok()) return status;
    keep_unique(&discovery.inputs, &readings, &set);
  }
  if (set.ranks.empty()) {
    std::string text = fmt::format(
        "no profile that can be used in {} (looked for *.json and *.json.gz traces and for directories "
        "..._ascend_pt, at any depth)",
        directory.string());
    for (const ProfileProblem& problem : set.problems)
      text += fmt::format("\n  {}: {}", problem.path, problem.text);
    return Status(ErrorCode::kInvalidArgument, text);
  }
  find_missing(&set);
  return set;
}

}  // namespace collective_ops
