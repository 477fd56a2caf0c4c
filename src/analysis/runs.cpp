#include "analysis/runs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "analysis/intervals.h"
#include "analysis/readers/json_scanner.h"
#include "analysis/readers/text_source.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

// When a profile was recorded, as far as it says; begin 0 where it does not.
Interval time_of(const RankProfile& profile) {
  if (profile.whole) return {profile.whole->begin_ns, profile.whole->end_ns};
  if (!profile.calls.empty()) {
    const auto last = std::max_element(profile.calls.begin(), profile.calls.end(),
                                       [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
    return {profile.calls.front().start_ns, last->end_ns};
  }
  const auto& slices = profile.timeline.slices;
  if (slices.empty()) return {0, 0};
  return {slices.front().start_ns, slices.back().start_ns + slices.back().duration_ns};
}

void read_clock(JsonScanner* scanner, ProfiledRun* run) {
  if (scanner->peek() != '{') {
    scanner->skip();
    return;
  }
  std::string_view key;
  scanner->enter('{');
  while (scanner->next_key(&key)) {
    if (key == "error_ns") {
      run->clock_error_ns = std::max<int64_t>(0, scanner->integer());
    } else {
      scanner->skip();
    }
  }
}

void read_mark(JsonScanner* scanner, ProfiledRun* run) {
  std::string_view key, text;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    std::string* target = nullptr;
    if (key == "run") target = &run->id;
    if (key == "started") target = &run->started;
    if (key == "host") target = &run->host;
    if (key == "clock_host") target = &run->clock_host;
    if (key == "clock") {
      read_clock(scanner, run);
    } else if (target != nullptr && scanner->peek() == '"') {
      if (scanner->string(&text)) *target = unescaped(text);
    } else {
      scanner->skip();
    }
  }
}

// The run that began last. Clocks of hosts differ, so its latest rank counts.
const RankProfile* newest_of(const std::vector<RunCandidate>& candidates) {
  const RankProfile* newest = nullptr;
  const auto key = [](const RankProfile& profile) {
    return std::tuple(std::string_view(profile.run.started), time_of(profile).begin,
                      std::string_view(profile.run.id));
  };
  for (const RunCandidate& candidate : candidates) {
    const RankProfile& profile = *candidate.profile;
    if (profile.run.id.empty()) continue;
    if (newest == nullptr || key(profile) > key(*newest)) newest = &profile;
  }
  return newest;
}

std::string shown(const ProfiledRun& run) {
  return run.started.empty() ? run.id : fmt::format("{} (started {})", run.id, run.started);
}

// Profiles that a newer one of the same rank replaces show when an older run was.
void find_by_time(const std::vector<RunCandidate>& candidates, std::vector<std::string>* reasons) {
  std::map<std::pair<int, int64_t>, std::vector<const RunCandidate*>> of_rank;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const RunCandidate& candidate = candidates[i];
    if (!(*reasons)[i].empty() || candidate.profile->rank < 0) continue;
    of_rank[{candidate.profile->rank, candidate.window}].push_back(&candidate);
  }
  IntervalSet replaced;
  const RankProfile* first = nullptr;  // of those that replace others
  for (auto& [rank, same] : of_rank) {
    if (same.size() < 2) continue;
    std::stable_sort(same.begin(), same.end(),
                     [](const RunCandidate* a, const RunCandidate* b) { return is_newer(*a, *b); });
    const RankProfile* taken = same.front()->profile;
    if (first == nullptr || time_of(*taken).begin < time_of(*first).begin) first = taken;
    for (size_t i = 1; i < same.size(); ++i) replaced.push_back(time_of(*same[i]->profile));
  }
  if (first == nullptr) return;
  replaced = united(std::move(replaced));
  for (size_t i = 0; i < candidates.size(); ++i) {
    const RankProfile& profile = *candidates[i].profile;
    const auto same = of_rank.find({profile.rank, candidates[i].window});
    if (!(*reasons)[i].empty() || same == of_rank.end() || same->second.size() > 1) continue;
    const Interval time = time_of(profile);
    if (time.end <= time.begin || time.end >= time_of(*first).begin) continue;
    if (intersection({time}, replaced).empty()) continue;
    (*reasons)[i] = fmt::format(
        "ended before {} (rank {}) began, and is as old as profiles which newer ones replace: it is of an "
        "older run, and was left out; for that run's sake move the newer profiles away",
        first->source, first->rank);
  }
}

}  // namespace

ProfiledRun run_of_directory(const fs::path& directory) {
  ProfiledRun run;
  std::error_code error;
  std::optional<fs::path> file;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("profiler_info") || !name.ends_with(".json")) continue;
    if (!file || entry.path() < *file) file = entry.path();
  }
  if (!file) return run;
  const auto whole = read_whole(*file);
  if (!whole.ok()) return run;
  JsonScanner scanner(whole->text);
  std::string_view key;
  if (!scanner.enter('{')) return run;
  while (scanner.next_key(&key)) {
    if (key == "collective_ops" && scanner.peek() == '{') {
      read_mark(&scanner, &run);
    } else {
      scanner.skip();
    }
  }
  return run;
}

bool is_newer(const RunCandidate& a, const RunCandidate& b) {
  return std::pair(time_of(*a.profile).begin, a.path_time) >
         std::pair(time_of(*b.profile).begin, b.path_time);
}

std::vector<std::string> older_runs(const std::vector<RunCandidate>& candidates) {
  std::vector<std::string> reasons(candidates.size());
  const RankProfile* newest = newest_of(candidates);
  for (size_t i = 0; newest != nullptr && i < candidates.size(); ++i) {
    const ProfiledRun& run = candidates[i].profile->run;
    if (run.id.empty() || run.id == newest->run.id) continue;
    reasons[i] = fmt::format(
        "is of the run {}, and was left out: {} of the run {} is newer; analyse the older one's profiles by "
        "themselves",
        shown(run), newest->source, shown(newest->run));
  }
  find_by_time(candidates, &reasons);
  return reasons;
}

}  // namespace collective_ops
