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

class Verdict {
 public:
  Verdict(const ProfileSet& set, WaitAnalysis* analysis) : set_(set), analysis_(*analysis) {}
  void run();

 private:
  void set_first_apart();
  void judge(uint32_t row);
  std::string cause_of(uint32_t row, const std::vector<const MatchedCall*>& late) const;
  std::string evidence_of(uint32_t row, const MatchedCall& call) const;
  double profiled_ms() const;

  const ProfileSet& set_;
  WaitAnalysis& analysis_;
  const MatchedCall* apart_ = nullptr;
  std::vector<const MatchedCall*> heavy_;
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

std::string Verdict::cause_of(uint32_t row, const std::vector<const MatchedCall*>& late) const {
  const RankProfile& profile = set_.ranks[row];
  std::map<uint32_t, int64_t> time_of;
  for (const MatchedCall* call : late) {
    const uint32_t activity = profile.calls[call->members[call->latest].call_row].busy_with;
    if (activity != kNone) time_of[activity] += loss_of(*call);
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

std::string Verdict::evidence_of(uint32_t row, const MatchedCall& call) const {
  const RankProfile& profile = set_.ranks[row];
  const ProfiledCall& own = profile.calls[call.members[call.latest].call_row];
  std::string name =
      shortened(profile.names[own.operator_name != kNone ? own.operator_name : own.collective]);
  if (own.elements >= 0) name += fmt::format(" of {} elements", own.elements);
  return fmt::format("{} at {} us: {:.3f} ms after the ranks' median; {}", name, own.start_ns / 1000,
                     milliseconds(loss_of(call)), profile.source);
}

void Verdict::judge(uint32_t row) {
  uint64_t trials = 0;
  double chance = 0;
  std::vector<const MatchedCall*> late;
  int64_t lost = 0;
  for (const MatchedCall* call : heavy_) {
    const auto own = std::find_if(call->members.begin(), call->members.end(),
                                  [&](const MatchedMember& member) { return member.rank_row == row; });
    if (own == call->members.end()) continue;
    ++trials;
    chance += 1.0 / static_cast<double>(call->members.size());
    lost += std::max<int64_t>(0, own->start_ns - call->median_start_ns);
    if (call->members[call->latest].rank_row == row) late.push_back(call);
  }
  if (late.size() < 2 || milliseconds(lost) < kLeastShare * profiled_ms()) return;
  const double p = binomial_tail(late.size(), trials, chance / static_cast<double>(trials)) *
                   static_cast<double>(set_.ranks.size());
  if (p > 0.05) return;
  SlowRank slow;
  slow.rank = set_.ranks[row].rank;
  slow.late_ms = milliseconds(lost);
  slow.times_last = late.size();
  slow.calls = trials;
  slow.confidence = p < 0.01 ? "high" : "medium";
  slow.cause = cause_of(row, late);
  slow.evidence = evidence_of(
      row, **std::max_element(late.begin(), late.end(),
                              [](const auto* a, const auto* b) { return loss_of(*a) < loss_of(*b); }));
  analysis_.slow.push_back(std::move(slow));
}

void Verdict::run() {
  set_first_apart();
  int64_t largest = 0;
  for (const MatchedCall& call : analysis_.calls) {
    if (&call != apart_) largest = std::max(largest, loss_of(call));
  }
  for (const MatchedCall& call : analysis_.calls) {
    if (&call != apart_ && loss_of(call) > 0 &&
        static_cast<double>(loss_of(call)) >= kHeavy * static_cast<double>(largest)) {
      heavy_.push_back(&call);
    }
  }
  for (uint32_t row = 0; row < set_.ranks.size(); ++row) judge(row);
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
