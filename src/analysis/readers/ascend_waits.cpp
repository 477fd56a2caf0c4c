#include "analysis/readers/ascend_waits.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/readers/chrome_events.h"

namespace collective_ops {
namespace {

constexpr int64_t kLeastWait = 500'000;
constexpr int64_t kNobody = UINT32_MAX;
constexpr int64_t kTolerance = 20'000;  // between the clocks of a call and of its parts

// A rank of a group as one of the job; -1 where no metadata lists the members, and the links do not show
// that group and job number ranks alike.
int64_t rank_of_job(const RankProfile& profile, uint32_t group, int64_t local) {
  for (const ProfiledGroup& known : profile.groups) {
    if (known.hash != profile.names[group] || known.ranks.empty()) continue;
    return local < static_cast<int64_t>(known.ranks.size()) ? known.ranks[static_cast<size_t>(local)] : -1;
  }
  const bool alike = std::any_of(profile.matrix.begin(), profile.matrix.end(), [&](const MatrixEntry& entry) {
    return entry.group == group && entry.source == entry.destination && entry.source == profile.rank;
  });
  return alike ? local : -1;
}

int64_t peer_of(std::string_view arguments) {
  JsonScanner scanner(arguments);
  std::string_view key;
  if (arguments.empty() || !scanner.enter('{')) return -1;
  while (scanner.next_key(&key)) {
    if (key == "dst rank") return scanner.integer();
    scanner.skip();
  }
  return -1;
}

// The call that holds a moment; null where none does, or calls of several groups do.
class CallAt {
 public:
  explicit CallAt(RankProfile* profile) : calls_(profile->calls) {
    for (const ProfiledCall& call : calls_) longest_ = std::max(longest_, call.end_ns - call.start_ns);
  }
  ProfiledCall* find(int64_t begin, int64_t end) const {
    auto at = std::upper_bound(calls_.begin(), calls_.end(), begin + kTolerance,
                               [](int64_t time, const ProfiledCall& call) { return time < call.start_ns; });
    ProfiledCall* found = nullptr;
    while (at != calls_.begin()) {
      ProfiledCall& call = *--at;
      if (call.start_ns + longest_ + kTolerance < end) break;
      if (call.end_ns + kTolerance < end) continue;
      if (found != nullptr && found->group != call.group) return nullptr;
      if (found == nullptr) found = &call;
    }
    return found;
  }

 private:
  std::vector<ProfiledCall>& calls_;  // by start
  int64_t longest_ = 0;
};

}  // namespace

void set_longest_wait(int64_t peer, int64_t nanoseconds, RankProfile* profile, ProfiledCall* call) {
  if (peer < 0 || peer >= kNobody || nanoseconds < kLeastWait || nanoseconds <= call->waited_ns) return;
  if (nanoseconds * 10 < call->end_ns - call->start_ns) return;
  call->longest_wait_rank = static_cast<int32_t>(rank_of_job(*profile, call->group, peer));
  call->waited_ns = nanoseconds;
}

void read_trace_view_waits(const std::filesystem::path& path, RankProfile* profile) {
  std::error_code error;
  if (profile->calls.empty() || !std::filesystem::exists(path, error)) return;
  const CallAt call_at(profile);
  ChromeTrace trace;
  const auto read = for_each_event(path, &trace, [&](const RawEvent& event) {
    if (event.name != "Notify_Wait" && event.name != "Notify Wait") return;
    const auto begin = nanoseconds_of(event.start), took = nanoseconds_of(event.duration);
    if (!begin || !took || *took < kLeastWait || *took > INT64_MAX - *begin) return;
    ProfiledCall* const call = call_at.find(*begin, *begin + *took);
    if (call != nullptr) set_longest_wait(peer_of(event.arguments), *took, profile, call);
  });
  std::string problem = read.ok() ? trace.damage.text : read.status().message();
  if (read.ok() && trace.damage.events > 0) {
    problem +=
        fmt::format("{}{} broken events were skipped", problem.empty() ? "" : "; ", trace.damage.events);
  }
  if (!problem.empty()) profile->notes.push_back(fmt::format("trace_view.json: {}", problem));
}

}  // namespace collective_ops
