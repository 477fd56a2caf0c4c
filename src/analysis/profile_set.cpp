#include "analysis/profile_set.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "analysis/profile_names.h"
#include "analysis/readers/ascend.h"
#include "analysis/readers/ascend_waits.h"
#include "analysis/readers/chrome_trace.h"
#include "analysis/readers/flight_recorder.h"
#include "analysis/readers/text_source.h"
#include "analysis/runs.h"
#include "analysis/step_time.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

struct Reading {
  std::vector<RankProfile> profiles;
  std::string problem;   // why nothing of it can be used
  bool ignored = false;  // it is JSON, and no profile
};

// A rank by the file's content, by what the caller said, or by its name, in this order.
class RankOf {
 public:
  RankOf(const FoundProfile& file, const ReadOptions& options) : file_(file) {
    std::error_code error;
    const auto given = options.ranks.find(fs::canonical(file.path, error));
    if (given != options.ranks.end()) given_ = given->second;
  }
  int value(std::optional<int> content, std::vector<std::string>* notes) const {
    if (content && given_ && *content != *given_) {
      notes->push_back(
          fmt::format("its content says rank {}, which is taken; --rank says {}", *content, *given_));
    }
    return content ? *content : given_.value_or(rank_in_path(file_.path));
  }

 private:
  const FoundProfile& file_;
  std::optional<int> given_;
};

// The size of the job as one profile shows it: as said, else as members of its groups and its links have it.
int size_of_job(const RankProfile& profile) {
  int size = 0;
  const auto grow = [&](int to) {
    if (to <= kMostRanks) size = std::max(size, to);
  };
  grow(profile.world_size);
  grow(profile.rank + 1);
  for (const ProfiledGroup& group : profile.groups) {
    if (!group.ranks.empty() && group.ranks.back() < kMostRanks) grow(group.ranks.back() + 1);
  }
  const bool world_links =
      std::all_of(profile.groups.begin(), profile.groups.end(),
                  [](const ProfiledGroup& group) { return group.ranks.empty(); }) &&
      std::any_of(profile.matrix.begin(), profile.matrix.end(), [&](const MatrixEntry& e) {
        return e.source == profile.rank && e.destination == profile.rank;
      });
  for (const MatrixEntry& entry : profile.matrix) {
    if (world_links) grow(std::min(std::max(entry.source, entry.destination), kMostRanks) + 1);
  }
  return size;
}

Reading read_flight_dump(const FoundProfile& input, const RankOf& rank_of) {
  Reading reading;
  auto whole = read_whole(input.path);
  if (!whole.ok()) {
    reading.problem = whole.status().message();
    return reading;
  }
  auto profile = read_flight_recorder(whole->text, -1);
  if (!profile.ok()) {
    reading.problem = profile.status().message();
    return reading;
  }
  profile->rank = rank_of.value({}, &profile->notes);
  if (!whole->problem.empty()) profile->notes.push_back(whole->problem);
  reading.profiles.push_back(std::move(*profile));
  return reading;
}

Reading read_chrome(const FoundProfile& input, const RankOf& rank_of) {
  Reading reading;
  auto trace = read_chrome_trace(input.path);
  if (!trace.ok()) {
    const std::string text = trace.status().message();
    if (!text.ends_with("no traceEvents")) {
      reading.problem = text;
      return reading;
    }
    reading = read_flight_dump(input, rank_of);
    if (reading.profiles.empty()) {
      reading.problem = text;
      reading.ignored = rank_in_path(input.path) < 0;
    }
    return reading;
  }
  if (trace->events.size() == 0) {
    reading.ignored =
        trace->damage.text.empty() && trace->damage.events == 0 && !trace->header.rank.has_value();
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
  profile.rank = rank_of.value(header.rank, &profile.notes);
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

// `directories`: how many inputs are Ascend's.
Reading read_one(const FoundProfile& input, const ReadOptions& options, size_t directories) {
  Reading reading;
  const RankOf rank_of(input, options);
  if (!input.ascend) {
    reading = read_chrome(input, rank_of);
  } else {
    std::vector<std::string> notes;
    const int rank = rank_of.value(rank_of_ascend_directory(input.path), &notes);
    auto profile = read_ascend_directory(input.path, rank);
    if (profile.ok()) {
      profile->run = run_of_directory(input.path);
      if (!profile->run.host.empty()) profile->host = profile->run.host;
      // Its notifications tell of ranks whose profiles are missing. They are most of the text, and say no
      // more than the profiles of all ranks do.
      const bool missing = static_cast<size_t>(size_of_job(*profile)) > directories;
      if (profile->format == "ascend_text" && (options.part_of_job || missing)) {
        read_trace_view_waits(input.path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", &*profile);
      }
      profile->notes.insert(profile->notes.begin(), notes.begin(), notes.end());
      reading.profiles.push_back(std::move(*profile));
    } else {
      reading.problem = profile.status().message();
    }
  }
  // The path stands before the text wherever that is shown; other texts name it as the user knows it.
  const std::string path = input.path.string();
  if (reading.problem.starts_with(path + ": ")) reading.problem.erase(0, path.size() + 2);
  if (const size_t at = reading.problem.find(path); at != std::string::npos) {
    reading.problem.replace(at, path.size(), input.shown);
  }
  for (RankProfile& profile : reading.profiles) profile.source = input.shown;
  return reading;
}

// Every input by its own thread at a time; the calling thread watches.
Status read_all(const std::vector<FoundProfile>& inputs, const ReadOptions& options,
                std::vector<Reading>* readings) {
  readings->resize(inputs.size());
  const auto texts = std::make_shared<SharedTexts>();
  const auto directories =
      std::count_if(inputs.begin(), inputs.end(), [](const FoundProfile& input) { return input.ascend; });
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::condition_variable finished;
  size_t done = 0;
  std::atomic<bool> stopped{false};
  const auto work = [&] {
    for (size_t i = next++; i < inputs.size() && !stopped; i = next++) {
      Reading reading;
      try {
        reading = read_one(inputs[i], options, static_cast<size_t>(directories));
        for (RankProfile& profile : reading.profiles) keep_used_names(&profile, texts);
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

// Each rank once; a second profile of one is named together with the first. Windows of one rank are joined.
class Joining {
 public:
  Joining(bool alone, ProfileSet* set) : alone_(alone), set_(*set) {}
  void add(const FoundProfile& input, Reading reading);

 private:
  void add_profile(const FoundProfile& input, RankProfile profile);

  bool alone_;  // one profile is all there is
  ProfileSet& set_;
  std::map<int, size_t> row_of_;
  std::map<int, std::map<int64_t, std::string>> windows_of_;  // rank -> window -> path
};

void Joining::add(const FoundProfile& input, Reading reading) {
  if (reading.ignored) {
    set_.ignored.push_back(input.shown);
    return;
  }
  if (!reading.problem.empty()) set_.problems.push_back({input.shown, reading.problem});
  for (RankProfile& profile : reading.profiles) add_profile(input, std::move(profile));
}

void Joining::add_profile(const FoundProfile& input, RankProfile profile) {
  for (const std::string& note : profile.notes) set_.problems.push_back({input.shown, note});
  set_.bytes += profile.bytes;
  set_.events += profile.events;
  if (profile.rank < 0 && alone_) profile.rank = 0;
  if (profile.rank < 0) {
    set_.problems.push_back({input.shown,
                             "neither its content nor its name says of which rank it is; say "
                             "it with --rank FILE=N"});
    return;
  }
  if (profile.rank >= kMostRanks) {
    set_.problems.push_back(
        {input.shown, fmt::format("is of rank {}, which cannot be; say the right one with "
                                  "--rank FILE=N",
                                  profile.rank)});
    return;
  }
  const int64_t window = window_in_path(input.path);
  std::map<int64_t, std::string>& windows = windows_of_[profile.rank];
  const auto same = windows.contains(window) ? windows.find(window) : windows.find(-1);
  if (same != windows.end() || (window < 0 && !windows.empty())) {
    set_.problems.push_back(
        {input.shown,
         fmt::format("is of rank {}, as {} is, which is no older and was taken; move one away", profile.rank,
                     same != windows.end() ? same->second : windows.begin()->second)});
    return;
  }
  windows.emplace(window, input.shown);
  for (ProfiledCall& call : profile.calls) {
    call.window = static_cast<int32_t>(std::min<int64_t>(window, INT32_MAX));
  }
  if (window >= 0 && profile.steps.size() == 1 && profile.steps.front().step.empty()) {
    profile.steps.front().step = std::to_string(window);
  }
  const auto [at, fresh] = row_of_.emplace(profile.rank, set_.ranks.size());
  if (fresh) {
    set_.ranks.push_back(std::move(profile));
  } else {
    append_window(&set_.ranks[at->second], std::move(profile));
  }
}

// The newest first: of two profiles of one rank it is taken. Of older runs none is.
void join_all(const std::vector<FoundProfile>& inputs, const ReadOptions& options,
              std::vector<Reading> readings, ProfileSet* set) {
  static const RankProfile kNothing;
  std::vector<RunCandidate> candidates, newest;  // all; by input the first, by which they are sorted
  for (size_t i = 0; i < inputs.size(); ++i) {
    RunCandidate candidate{&kNothing, window_in_path(inputs[i].path), time_in_path(inputs[i].path)};
    newest.push_back(candidate);
    for (const RankProfile& profile : readings[i].profiles) {
      candidate.profile = &profile;
      if (newest.back().profile == &kNothing) newest.back() = candidate;
      candidates.push_back(candidate);
    }
  }
  std::vector<size_t> order(inputs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (newest[a].window != newest[b].window) return newest[a].window < newest[b].window;
    return is_newer(newest[a], newest[b]);
  });
  const std::vector<std::string> reasons = older_runs(candidates);
  size_t at = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::erase_if(readings[i].profiles, [&](const RankProfile&) {
      const std::string& reason = reasons[at++];
      if (!reason.empty()) set->problems.push_back({inputs[i].shown, reason});
      return !reason.empty();
    });
  }
  Joining joining(inputs.size() == 1 && !options.part_of_job, set);
  for (const size_t i : order) joining.add(inputs[i], std::move(readings[i]));
}

void find_missing(ProfileSet* set) {
  int size = 0;
  for (const RankProfile& profile : set->ranks) size = std::max(size, size_of_job(profile));
  set->world_size = size;
  for (int rank = 0, i = 0; rank < size; ++rank) {
    if (i < static_cast<int>(set->ranks.size()) && set->ranks[static_cast<size_t>(i)].rank == rank) {
      ++i;
    } else {
      set->missing_ranks.push_back(rank);
    }
  }
}

}  // namespace

Result<ProfileSet> read_profiles(const std::vector<ProfileInput>& inputs, const ReadOptions& options) {
  std::error_code error;
  std::string names;
  for (const ProfileInput& input : inputs) {
    const std::string shown = input.shown.empty() ? input.path.string() : input.shown;
    if (!fs::exists(input.path, error)) {
      return Status(ErrorCode::kInvalidArgument, fmt::format("there is no file or directory {}", shown));
    }
    if (input.shown.empty() || names.empty()) names += (names.empty() ? "" : ", ") + shown;
  }
  Discovery discovery = discover(inputs);
  ProfileSet set;
  set.problems = options.problems;
  set.problems.insert(set.problems.end(), discovery.problems.begin(), discovery.problems.end());
  if (!discovery.found.empty()) {
    std::vector<Reading> readings;
    if (Status status = read_all(discovery.found, options, &readings); !status.ok()) return status;
    join_all(discovery.found, options, std::move(readings), &set);
  }
  if (set.ranks.empty()) {
    std::string text = fmt::format(
        "no profile that can be used in {} (looked for *.json and *.json.gz traces, for directories "
        "..._ascend_pt, for dumps of the flight recorder, and for archives of these, at any depth)",
        names);
    for (const ProfileProblem& problem : set.problems)
      text += fmt::format("\n  {}: {}", problem.path, problem.text);
    return Status(ErrorCode::kInvalidArgument, text);
  }
  complete(&set);
  return set;
}

void complete(ProfileSet* set) {
  std::sort(set->ranks.begin(), set->ranks.end(),
            [](const RankProfile& a, const RankProfile& b) { return a.rank < b.rank; });
  std::stable_sort(set->problems.begin(), set->problems.end(),
                   [](const ProfileProblem& a, const ProfileProblem& b) { return a.path < b.path; });
  std::sort(set->ignored.begin(), set->ignored.end());
  find_missing(set);
}

}  // namespace collective_ops
