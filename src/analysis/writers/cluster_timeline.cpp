#include "analysis/writers/cluster_timeline.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "analysis/writers/output_file.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;
constexpr std::string_view kStepTrack = "steps", kCallTrack = "communication";

// By call of a rank: row of WaitAnalysis::calls, kNone where it is matched with none.
using MatchOf = std::vector<uint32_t>;

std::vector<MatchOf> matches_of(const ProfileSet& set, const WaitAnalysis& waits) {
  std::vector<MatchOf> matches(set.ranks.size());
  for (size_t row = 0; row < set.ranks.size(); ++row) matches[row].resize(set.ranks[row].calls.size(), kNone);
  for (uint32_t i = 0; i < waits.calls.size(); ++i) {
    for (const MatchedMember& member : waits.calls[i].members) matches[member.rank_row][member.call_row] = i;
  }
  return matches;
}

int64_t duration_of(const ProfiledCall& call) { return call.end_ns - call.start_ns; }

int64_t longest_of(const MatchedCall& call) {
  int64_t longest = 0;
  for (const MatchedMember& member : call.members) {
    longest = std::max(longest, member.end_ns - member.start_ns);
  }
  return longest;
}

// Leaves the rows of the `most` longest calls, by start.
void keep_calls(const RankProfile& profile, const WaitAnalysis& waits, const MatchOf& matches, size_t most,
                TimelineSelection* selection, std::vector<uint32_t>* rows) {
  rows->resize(profile.calls.size());
  std::iota(rows->begin(), rows->end(), 0u);
  if (rows->size() <= most) return;
  std::vector<int64_t> weight;
  weight.reserve(rows->size());
  for (size_t i = 0; i < profile.calls.size(); ++i) {
    weight.push_back(matches[i] != kNone ? longest_of(waits.calls[matches[i]])
                                         : duration_of(profile.calls[i]));
  }
  const auto end = rows->begin() + static_cast<ptrdiff_t>(most);
  std::nth_element(rows->begin(), end, rows->end(), [&](uint32_t a, uint32_t b) {
    return weight[a] != weight[b] ? weight[a] > weight[b] : a < b;
  });
  selection->left_out += rows->size() - most;
  for (auto at = end; at != rows->end(); ++at) {
    selection->longest_left_out_ns =
        std::max(selection->longest_left_out_ns, duration_of(profile.calls[*at]));
  }
  rows->resize(most);
  std::sort(rows->begin(), rows->end());
}

// Rows for events of one track that overlap without one holding the other: a viewer draws such on top of
// each other.
class Lanes {
 public:
  size_t lane_of(int64_t begin, int64_t end) {
    for (size_t lane = 0;; ++lane) {
      if (lane == open_.size()) open_.emplace_back();
      std::vector<int64_t>& ends = open_[lane];
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      if (!ends.empty() && ends.back() < end) continue;
      ends.push_back(end);
      return lane;
    }
  }

 private:
  std::vector<std::vector<int64_t>> open_;  // ends of what is open in each, the innermost last
};

class Writer {
 public:
  Writer(const ProfileSet& set, const WaitAnalysis& waits, const TimelineSelection& selection,
         OutputFile* file)
      : set_(set), waits_(waits), selection_(selection), out_(*file) {}
  void run();

 private:
  struct Track {
    Lanes lanes;
    std::vector<int> threads;  // by lane
  };
  int64_t base() const;
  void rank(size_t row);
  void event(std::string_view track, std::string_view category, std::string_view name, int64_t begin,
             int64_t duration, std::string_view arguments);
  int thread_of(std::string_view track, int64_t begin, int64_t end);
  void metadata(int thread, std::string_view what, std::string_view value);
  std::string arguments_of(const RankProfile& profile, const ProfiledCall& call, const MatchedCall* match,
                           int64_t start) const;

  const ProfileSet& set_;
  const WaitAnalysis& waits_;
  const TimelineSelection& selection_;
  OutputFile& out_;
  int64_t base_ns_ = 0;
  bool first_ = true;
  int rank_ = 0, next_thread_ = 0;
  std::map<std::string, Track, std::less<>> tracks_;  // of the rank at hand
};

// The first moment of all.
int64_t Writer::base() const {
  int64_t base = INT64_MAX;
  for (size_t row = 0; row < set_.ranks.size(); ++row) {
    const TimelineSelection::Rank& kept = selection_.ranks[row];
    const RankProfile& profile = set_.ranks[row];
    int64_t first = INT64_MAX;
    for (const uint32_t step : kept.steps) first = std::min(first, profile.steps[step].begin_ns);
    for (const uint32_t call : kept.calls) first = std::min(first, profile.calls[call].start_ns);
    if (!kept.slices.empty()) first = std::min(first, kept.slices.front().start_ns);
    if (first != INT64_MAX) base = std::min(base, first - waits_.offset_ns[row]);
  }
  return base == INT64_MAX ? 0 : base;
}

void Writer::metadata(int thread, std::string_view what, std::string_view value) {
  out_.print("{}\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}",
             std::exchange(first_, false) ? "" : ",", what, rank_, thread, value);
}

int Writer::thread_of(std::string_view track, int64_t begin, int64_t end) {
  const auto [at, fresh] = tracks_.try_emplace(std::string(track));
  const size_t lane = at->second.lanes.lane_of(begin, end);
  std::vector<int>& threads = at->second.threads;
  if (lane == threads.size()) {
    threads.push_back(next_thread_++);
    const std::string name = lane == 0 ? at->first : fmt::format("{} ({})", at->first, lane + 1);
    metadata(threads[lane], "thread_name", "\"name\":" + json_text(name));
    metadata(threads[lane], "thread_sort_index", fmt::format("\"sort_index\":{}", threads[lane]));
  }
  return threads[lane];
}

void Writer::event(std::string_view track, std::string_view category, std::string_view name, int64_t begin,
                   int64_t duration, std::string_view arguments) {
  const int thread = thread_of(track, begin, begin + duration);
  const int64_t since = begin - base_ns_;
  out_.print(
      ",\n{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03}"
      "{}{}{}}}",
      category, json_text(name), rank_, thread, since / 1000, since % 1000, duration / 1000, duration % 1000,
      arguments.empty() ? "" : ",\"args\":{", arguments, arguments.empty() ? "" : "}");
}

// Kineto's names where it has some.
std::string Writer::arguments_of(const RankProfile& profile, const ProfiledCall& call,
                                 const MatchedCall* match, int64_t start) const {
  std::string text = fmt::format("\"Collective name\":{}", json_text(profile.names[call.collective]));
  if (call.group != kNone) {
    text += fmt::format(",\"Process Group Name\":{}", json_text(profile.names[call.group]));
  }
  if (call.sequence >= 0) text += fmt::format(",\"Seq\":{}", call.sequence);
  if (call.elements >= 0) text += fmt::format(",\"In msg nelems\":{}", call.elements);
  if (call.type != kNone) text += fmt::format(",\"dtype\":{}", json_text(profile.names[call.type]));
  if (call.peer >= 0) text += fmt::format(",\"peer\":{}", call.peer);
  if (match == nullptr) return text;
  const int64_t waited = match->latest_start_ns - start;
  text += fmt::format(",\"waited_us\":{}.{:03},\"latest_rank\":{}", waited / 1000, waited % 1000,
                      set_.ranks[match->members[match->latest].rank_row].rank);
  return text;
}

void Writer::rank(size_t row) {
  static constexpr std::string_view kCategories[] = {"host", "range", "compute", "copy"};
  const RankProfile& profile = set_.ranks[row];
  const TimelineSelection::Rank& kept = selection_.ranks[row];
  const int64_t offset = waits_.offset_ns[row];
  rank_ = profile.rank;
  next_thread_ = 0;
  tracks_.clear();
  const std::string host = profile.host.empty() ? std::string() : " on " + profile.host;
  metadata(0, "process_name", "\"name\":" + json_text(fmt::format("rank {}{}", rank_, host)));
  metadata(0, "process_sort_index", fmt::format("\"sort_index\":{}", rank_));
  for (const uint32_t index : kept.steps) {
    const StepTime& step = profile.steps[index];
    event(kStepTrack, "step", step.step.empty() ? "whole" : "step " + step.step, step.begin_ns - offset,
          step.end_ns - step.begin_ns,
          fmt::format("\"computing_us\":{},\"exposed_communication_us\":{},\"free_us\":{}", step.computing_us,
                      step.exposed_us, step.free_us));
  }
  for (size_t i = 0; i < kept.calls.size(); ++i) {
    const ProfiledCall& call = profile.calls[kept.calls[i]];
    const MatchedCall* const match = kept.matches[i] != kNone ? &waits_.calls[kept.matches[i]] : nullptr;
    const uint32_t name = call.operator_name != kNone ? call.operator_name : call.collective;
    const int64_t start = call.start_ns - offset;
    event(kCallTrack, "communication", profile.names[name], start, std::max<int64_t>(0, duration_of(call)),
          arguments_of(profile, call, match, start));
  }
  for (const TimelineSlice& slice : kept.slices) {
    event(profile.names[slice.track], kCategories[static_cast<size_t>(slice.kind)], profile.names[slice.name],
          slice.start_ns - offset, slice.duration_ns, "");
  }
}

void Writer::run() {
  base_ns_ = base();
  out_.print(
      "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{},\n"
      "\"otherData\":{{\"events\":{},\"left_out\":{},\"longest_left_out_us\":{}.{:03}}},\n\"traceEvents\":[",
      base_ns_, selection_.events, selection_.left_out, selection_.longest_left_out_ns / 1000,
      selection_.longest_left_out_ns % 1000);
  for (size_t row = 0; row < set_.ranks.size(); ++row) rank(row);
  out_.print("\n]}}\n");
}

}  // namespace

TimelineSelection select_timeline(const ProfileSet& set, const WaitAnalysis& waits) {
  TimelineSelection selection;
  const std::vector<MatchOf> matches = matches_of(set, waits);
  const size_t share = timeline_share(static_cast<int>(set.ranks.size()));
  for (size_t row = 0; row < set.ranks.size(); ++row) {
    const RankProfile& profile = set.ranks[row];
    TimelineSelection::Rank& kept = selection.ranks.emplace_back();
    for (uint32_t step = 0; step < profile.steps.size(); ++step) {
      if (profile.steps[step].end_ns <= profile.steps[step].begin_ns) continue;  // only sums are known
      if (kept.steps.size() == share) {
        ++selection.left_out;
      } else {
        kept.steps.push_back(step);
      }
    }
    RankTimeline slices = profile.timeline;
    // Calls get half of the room, and what the others leave of theirs.
    const size_t calls = std::max(share / 2, share - std::min(share, slices.slices.size()));
    keep_calls(profile, waits, matches[row], calls, &selection, &kept.calls);
    for (const uint32_t call : kept.calls) kept.matches.push_back(matches[row][call]);
    keep_longest(&slices, share - kept.calls.size());
    kept.slices = std::move(slices.slices);
    selection.left_out += slices.left_out;
    selection.longest_left_out_ns = std::max(selection.longest_left_out_ns, slices.longest_left_out_ns);
    selection.events += kept.steps.size() + kept.calls.size() + kept.slices.size();
  }
  return selection;
}

Status write_cluster_timeline(const ProfileSet& set, const WaitAnalysis& waits,
                              const TimelineSelection& selection, const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);  // creating the file says why it failed
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  Writer(set, waits, selection, file->get()).run();
  return (*file)->finish();
}

}  // namespace collective_ops
