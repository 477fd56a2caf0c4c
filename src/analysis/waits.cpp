#include "analysis/waits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "analysis/matching.h"

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;
// A rank is worth naming where it costs this share of the time that was profiled.
constexpr double kLeastShare = 0.005;
constexpr double kHeavy = 0.1;  // of the largest loss in one call: what lies below is noise
constexpr double kAlign = 1e-6;

// Kernels' names can be a page long.
std::string shortened(std::string_view name) {
  constexpr size_t kMost = 96;
  return name.size() <= kMost ? std::string(name) : std::string(name.substr(0, kMost)) + "...";
}

double milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * kAlign; }

int64_t loss_of(const MatchedCall& call) { return call.latest_start_ns - call.median_start_ns; }

// P(at least `hits` of `trials`), each with probability p.
double binomial_tail(uint64_t hits, uint64_t trials, double p) {
  if (p >= 1) return 1;
  double tail = 0;
  for (uint64_t k = hits; k <= trials; ++k) {
    const auto n = static_cast<double>(trials), x = static_cast<double>(k);
    const double ways = std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1);
    tail += std::exp(ways + x * std::log(p) + (n - x) * std::log1p(-p));
  }
  return std::min(tail, 1.0);
}

int64_t lower_median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr int64_t kUnknown = INT64_MIN;

// By row of a rank's calls: from the end of all calls before it to its start; kUnknown for the first, and
// where one of these has not ended by then.
std::vector<int64_t> own_times_of(const RankProfile& profile) {
  std::vector<int64_t> times;
  times.reserve(profile.calls.size());
  int64_t ended = kUnknown;
  for (const ProfiledCall& call : profile.calls) {
    times.push_back(ended == kUnknown || ended > call.start_ns ? kUnknown : call.start_ns - ended);
    ended = std::max(ended, call.end_ns);
  }
  return times;
}

// Who is slow. A rank is charged with what it comes late to a call by, as far as it took that much longer
// than others since its last call: what it was already late by when it left that is charged there, to who
// held that up. Slow ranks hide those that are less slow, so these are looked for among the others.
class Verdict {
 public:
  Verdict(const ProfileSet& set, WaitAnalysis* analysis)
      : set_(set), analysis_(*analysis), found_(set.ranks.size()) {}
  void run();

 private:
  // A call as those ranks saw it that are not found yet.
  struct Lateness {
    const MatchedCall* call = nullptr;
    uint32_t latest = 0;  // row of its members
    int64_t median_start_ns = 0, median_own_ns = kUnknown;
    int64_t lost_ns = 0;
  };
  struct Suspect {
    uint64_t trials = 0;
    double chance = 0;
    int64_t lost_ns = 0;
    std::vector<const Lateness*> late;
  };
  void set_first_apart();
  bool look_among_others();
  Lateness lateness_in(const MatchedCall& call) const;
  int64_t charge(const Lateness& lateness, const MatchedMember& member) const;
  bool judge(uint32_t row, const Suspect& suspect);
  std::string cause_of(uint32_t row, const std::vector<const Lateness*>& late) const;
  std::string evidence_of(uint32_t row, const Lateness& lateness) const;
  double profiled_ms() const;

  const ProfileSet& set_;
  WaitAnalysis& analysis_;
  std::vector<bool> found_;                      // by row of the ranks
  std::vector<std::vector<int64_t>> own_times_;  // likewise
  double profiled_ms_ = 0;
  const MatchedCall* apart_ = nullptr;
};

// Profilers do not start together: the first call absorbs the difference, and says nothing of slow ranks.
void Verdict::set_first_apart() {
  if (analysis_.calls.size() < 4) return;
  const auto first = std::min_element(
      analysis_.calls.begin(), analysis_.calls.end(),
      [](const MatchedCall& a, const MatchedCall& b) { return a.latest_start_ns < b.latest_start_ns; });
  const double loss = milliseconds(loss_of(*first));
  if (loss < 1 || loss * 2 < analysis_.lost_ms) return;
  apart_ = &*first;
  analysis_.findings.push_back(
      fmt::format("the first call lost {:.3f} ms, more than all others together: that is when the profilers "
                  "started, and is "
                  "left out of the verdict",
                  loss));
}

// The longest that a rank was profiled: windows that lie apart add up.
double Verdict::profiled_ms() const {
  int64_t longest = 0, begin = INT64_MAX, end = INT64_MIN;
  for (const RankProfile& profile : set_.ranks) {
    if (profile.whole) longest = std::max(longest, profile.whole->end_ns - profile.whole->begin_ns);
  }
  if (longest > 0) return milliseconds(longest);
  for (const MatchedCall& call : analysis_.calls) {
    for (const MatchedMember& member : call.members) {
      begin = std::min(begin, member.start_ns);
      end = std::max(end, member.end_ns);
    }
  }
  return milliseconds(end - begin);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double computing_of(const RankProfile& profile) {
  return std::accumulate(profile.steps.begin(), profile.steps.end(), 0.0,
                         [](double sum, const StepTime& step) { return sum + step.computing_us; }) /
         1000;
}

std::string Verdict::cause_of(uint32_t row, const std::vector<const Lateness*>& late) const {
  const RankProfile& profile = set_.ranks[row];
  std::map<uint32_t, int64_t> time_of;
  for (const Lateness* lateness : late) {
    const MatchedMember& member = lateness->call->members[lateness->latest];
    const uint32_t activity = profile.calls[member.call_row].busy_with;
    if (activity != kNone) time_of[activity] += lateness->lost_ns;
  }
  std::string text;
  const auto most = std::max_element(time_of.begin(), time_of.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != time_of.end())
    text = fmt::format("before those calls it was busy with '{}'", shortened(profile.names[most->first]));
  std::vector<double> others;
  for (uint32_t other = 0; other < set_.ranks.size(); ++other) {
    if (other != row && !set_.ranks[other].steps.empty()) others.push_back(computing_of(set_.ranks[other]));
  }
  const double own = computing_of(profile), usual = median_of(others);
  if (profile.steps.empty() || usual <= 0) return text.empty() ? "not in the profile" : text;
  if (!text.empty()) text += "; ";
  const double more = own / usual - 1;
  if (more > 0.02)
    return text + fmt::format("it computes {:.1f} ms, {:.0f} % more than the others", own, more * 100);
  return text + fmt::format(
                    "it computes {:.1f} ms, as the others do ({:.1f} ms): the time goes on the host, or on "
                    "other work",
                    own, usual);
}

std::string Verdict::evidence_of(uint32_t row, const Lateness& lateness) const {
  const RankProfile& profile = set_.ranks[row];
  const ProfiledCall& own = profile.calls[lateness.call->members[lateness.latest].call_row];
  std::string name =
      shortened(profile.names[own.operator_name != kNone ? own.operator_name : own.collective]);
  if (own.elements >= 0) name += fmt::format(" of {} elements", own.elements);
  return fmt::format("{} at {} us: {:.3f} ms after the ranks' median; {}", name, own.start_ns / 1000,
                     milliseconds(lateness.lost_ns), profile.source);
}

// Nothing is lost in it where fewer than two ranks are left.
Verdict::Lateness Verdict::lateness_in(const MatchedCall& call) const {
  Lateness lateness{&call};
  std::vector<int64_t> starts, own;
  int64_t last = kUnknown;
  for (uint32_t i = 0; i < call.members.size(); ++i) {
    const MatchedMember& member = call.members[i];
    if (found_[member.rank_row]) continue;
    starts.push_back(member.start_ns);
    const int64_t time = own_times_[member.rank_row][member.call_row];
    if (time != kUnknown) own.push_back(time);
    if (member.start_ns > last) lateness.latest = i, last = member.start_ns;
  }
  if (starts.size() < 2) return lateness;
  lateness.median_start_ns = lower_median(std::move(starts));
  if (!own.empty()) lateness.median_own_ns = lower_median(std::move(own));
  lateness.lost_ns = last - lateness.median_start_ns;
  return lateness;
}

int64_t Verdict::charge(const Lateness& lateness, const MatchedMember& member) const {
  const int64_t late = std::max<int64_t>(0, member.start_ns - lateness.median_start_ns);
  const int64_t own = own_times_[member.rank_row][member.call_row];
  if (own == kUnknown || lateness.median_own_ns == kUnknown) return late;
  return std::clamp<int64_t>(own - lateness.median_own_ns, 0, late);
}

bool Verdict::judge(uint32_t row, const Suspect& suspect) {
  const std::vector<const Lateness*>& late = suspect.late;
  if (late.size() < 2 || milliseconds(suspect.lost_ns) < kLeastShare * profiled_ms_) return false;
  const double p =
      binomial_tail(late.size(), suspect.trials, suspect.chance / static_cast<double>(suspect.trials)) *
      static_cast<double>(set_.ranks.size());
  if (p > 0.05) return false;
  SlowRank slow;
  slow.rank = set_.ranks[row].rank;
  slow.late_ms = milliseconds(suspect.lost_ns);
  slow.times_last = late.size();
  slow.calls = suspect.trials;
  slow.confidence = p < 0.01 ? "high" : "medium";
  slow.cause = cause_of(row, late);
  slow.evidence = evidence_of(
      row, **std::max_element(late.begin(), late.end(),
                              [](const auto* a, const auto* b) { return a->lost_ns < b->lost_ns; }));
  analysis_.slow.push_back(std::move(slow));
  return true;
}

// True where one was found.
bool Verdict::look_among_others() {
  std::vector<Lateness> heavy;
  int64_t largest = 0;
  for (const MatchedCall& call : analysis_.calls) {
    if (&call == apart_) continue;
    const Lateness lateness = lateness_in(call);
    // Whose last rank left the call before as late as it comes says nothing of who is slow.
    if (lateness.lost_ns <= 0 || charge(lateness, call.members[lateness.latest]) * 2 < lateness.lost_ns)
      continue;
    largest = std::max(largest, lateness.lost_ns);
    heavy.push_back(lateness);
  }
  std::erase_if(heavy, [&](const Lateness& lateness) {
    return static_cast<double>(lateness.lost_ns) < kHeavy * static_cast<double>(largest);
  });
  std::vector<Suspect> suspects(set_.ranks.size());
  for (const Lateness& lateness : heavy) {
    const auto& members = lateness.call->members;
    const auto left = std::count_if(members.begin(), members.end(),
                                    [&](const MatchedMember& member) { return !found_[member.rank_row]; });
    for (uint32_t i = 0; i < members.size(); ++i) {
      if (found_[members[i].rank_row]) continue;
      Suspect& suspect = suspects[members[i].rank_row];
      ++suspect.trials;
      suspect.chance += 1.0 / static_cast<double>(left);
      suspect.lost_ns += charge(lateness, members[i]);
      if (lateness.latest == i) suspect.late.push_back(&lateness);
    }
  }
  std::vector<bool> found = found_;
  for (uint32_t row = 0; row < suspects.size(); ++row) {
    if (judge(row, suspects[row])) found[row] = true;
  }
  const bool more = found != found_;
  found_ = std::move(found);
  return more;
}

void Verdict::run() {
  set_first_apart();
  profiled_ms_ = profiled_ms();
  for (const RankProfile& profile : set_.ranks) own_times_.push_back(own_times_of(profile));
  // Nobody is slow by the measure of a minority: at least half of the ranks are usual.
  while (std::count(found_.begin(), found_.end(), true) * 2 < static_cast<ptrdiff_t>(found_.size()) &&
         look_among_others()) {
  }
  std::sort(analysis_.slow.begin(), analysis_.slow.end(),
            [](const SlowRank& a, const SlowRank& b) { return a.late_ms > b.late_ms; });
}

// A rank whose profile is missing can still be named by those that waited for it, where that was recorded:
// by our communicator, or in the notifications that an Ascend card waits for.
void find_absent(const ProfileSet& set, WaitAnalysis* analysis) {
  struct Awaited {
    std::map<int, double> waited_ms_by;  // observer -> sum
    uint64_t calls = 0;
    std::pair<int64_t, std::string> longest;
  };
  std::map<int, Awaited> absent;
  double all_ms = 0;
  uint64_t all_calls = 0;
  for (const RankProfile& profile : set.ranks) {
    for (const ProfiledCall& call : profile.calls) {
      if (call.waited_ns <= 0 || call.longest_wait_rank < 0) continue;
      all_ms += milliseconds(call.waited_ns);
      ++all_calls;
      const int rank = call.longest_wait_rank;
      if (!std::binary_search(set.missing_ranks.begin(), set.missing_ranks.end(), rank)) continue;
      Awaited& awaited = absent[rank];
      awaited.waited_ms_by[profile.rank] += milliseconds(call.waited_ns);
      ++awaited.calls;
      if (call.waited_ns <= awaited.longest.first) continue;
      const uint32_t name = call.operator_name != kNone ? call.operator_name : call.collective;
      awaited.longest = {call.waited_ns, fmt::format("rank {} waited {:.3f} ms for it in {}; {}",
                                                     profile.rank, milliseconds(call.waited_ns),
                                                     shortened(profile.names[name]), profile.source)};
    }
  }
  for (const auto& [rank, awaited] : absent) {
    double sum = 0;
    for (const auto& [observer, waited] : awaited.waited_ms_by) sum += waited;
    const auto observers = awaited.waited_ms_by.size();
    // One observer may have a slow link to it; two agree on the rank.
    if (observers < 2 || sum * 2 < all_ms) continue;
    SlowRank slow;
    slow.rank = rank;
    slow.late_ms = sum / static_cast<double>(observers);
    slow.times_last = awaited.calls;
    slow.calls = all_calls;
    slow.confidence = "medium";
    slow.cause =
        fmt::format("its profile is missing; {} ranks waited for it, {:.3f} of {:.3f} ms that they waited",
                    observers, sum, all_ms);
    slow.evidence = awaited.longest.second;
    analysis->slow.push_back(std::move(slow));
  }
}

}  // namespace

WaitAnalysis analyze_waits(const ProfileSet& set) {
  WaitAnalysis analysis;
  Matching matching = match_calls(set);
  analysis.calls = std::move(matching.calls);
  analysis.implausible = matching.implausible;
  analysis.offset_ns = std::move(matching.offset_ns);
  analysis.findings = std::move(matching.findings);
  analysis.waiting.resize(set.ranks.size());
  for (const MatchedCall& call : analysis.calls) {
    analysis.lost_ms += milliseconds(loss_of(call));
    for (size_t i = 0; i < call.members.size(); ++i) {
      const MatchedMember& member = call.members[i];
      RankWaiting& waiting = analysis.waiting[member.rank_row];
      ++waiting.calls;
      waiting.times_last += i == call.latest && loss_of(call) > 0 ? 1 : 0;
      waiting.waited_ms += milliseconds(call.latest_start_ns - member.start_ns);
      waiting.moved_ms += milliseconds(std::max<int64_t>(0, member.end_ns - call.latest_start_ns));
      waiting.late_ms += milliseconds(std::max<int64_t>(0, member.start_ns - call.median_start_ns));
    }
  }
  if (analysis.implausible > 0) {
    analysis.findings.push_back(
        fmt::format("{} pairings of calls cannot be (a rank ended before another began) and were left out",
                    analysis.implausible));
  }
  Verdict(set, &analysis).run();
  find_absent(set, &analysis);
  return analysis;
}

}  // namespace collective_ops
