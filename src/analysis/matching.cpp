#include "analysis/matching.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;
constexpr size_t kMostFindings = 20;
using Members = std::vector<MatchedMember>;

const ProfiledCall& call_of(const ProfileSet& set, const MatchedMember& member) {
  return set.ranks[member.rank_row].calls[member.call_row];
}

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ",", rank);
  return text;
}

// A group's name can mean other members on other ranks: both make the key.
std::string group_key(const RankProfile& profile, uint32_t group) {
  if (group == kNone) return {};
  const std::string_view name = profile.names[group];
  for (const ProfiledGroup& known : profile.groups) {
    if (known.hash == name) return fmt::format("{}({})", name, text_of(known.ranks));
  }
  return std::string(name);
}

// On whose clock the times are: profiles that were gathered are on one already.
const std::string& clock_of(const RankProfile& profile) {
  return profile.run.clock_host.empty() ? profile.host : profile.run.clock_host;
}

class Matcher {
 public:
  explicit Matcher(const ProfileSet& set) : set_(set) {}
  Matching run();

 private:
  struct OrderedClass {
    std::string name;                           // collective and size, for messages
    std::map<uint32_t, Members> calls_of_rank;  // in order
  };
  void collect();
  void tell_aligned();
  void align_hosts();
  void match_class(OrderedClass* ordered);
  size_t match_partition(const OrderedClass& ordered, const std::vector<std::set<uint32_t>>& groups,
                         std::vector<Members>* matched) const;
  std::vector<std::vector<std::set<uint32_t>>> partitions(const OrderedClass& ordered) const;
  bool possible(const Members& members) const;
  bool plausible(const Members& members) const;
  void compare(const std::string& key, const Members& members);
  void explain_unfinished(const Members& members);
  void add_findings();
  void accept(Members members);

  const ProfileSet& set_;
  std::vector<int64_t> offset_;  // by rank row: subtracted from its times
  std::unordered_map<std::string, Members> exact_;
  std::map<std::string, OrderedClass> ordered_;
  std::vector<std::pair<std::string, std::string>> differing_;  // key, what differs
  std::vector<std::pair<int64_t, std::string>> unfinished_;     // number of the call, what is known
  Matching result_;
};

void Matcher::collect() {
  for (uint32_t row = 0; row < set_.ranks.size(); ++row) {
    const RankProfile& profile = set_.ranks[row];
    std::unordered_map<uint32_t, std::string> groups;
    std::unordered_map<std::string, uint32_t> count;
    for (uint32_t i = 0; i < profile.calls.size(); ++i) {
      const ProfiledCall& call = profile.calls[i];
      if (call.point_to_point) continue;
      const auto [group, fresh] = groups.try_emplace(call.group);
      if (fresh) group->second = group_key(profile, call.group);
      const MatchedMember member{row, i, call.start_ns, call.end_ns};
      if (call.state != CallState::kCompleted && (call.sequence < 0 || call.group == kNone)) continue;
      if (call.operator_name != kNone) {
        const std::string key = fmt::format("o{}|{}", group->second, profile.names[call.operator_name]);
        // A profiler numbers calls anew in each step.
        exact_[fmt::format("{}|{}", key, count[key]++)].push_back(member);
      } else if (call.sequence >= 0 && call.group != kNone) {
        const std::string key = fmt::format("s{}|{}", group->second, call.sequence);
        // Parts of one coalesced call share its number.
        exact_[fmt::format("{}|{}", key, count[key]++)].push_back(member);
      } else {
        const std::string name =
            call.elements >= 0
                ? fmt::format("{} of {} elements", profile.names[call.collective], call.elements)
                : std::string(profile.names[call.collective]);
        OrderedClass& ordered = ordered_[fmt::format("{}|{}|{}", group->second, name, call.window)];
        ordered.name = name;
        ordered.calls_of_rank[row].push_back(member);
      }
    }
  }
}

void Matcher::tell_aligned() {
  std::map<std::string, std::pair<std::set<std::string>, int64_t>> aligned;  // to each clock: hosts, error
  for (const RankProfile& profile : set_.ranks) {
    if (profile.run.clock_host.empty() || profile.run.clock_host == profile.host) continue;
    auto& [hosts, error] = aligned[profile.run.clock_host];
    hosts.insert(profile.host);
    error = std::max(error, profile.run.clock_error_ns);
  }
  for (const auto& [clock, found] : aligned) {
    result_.findings.push_back(
        fmt::format("times of {} are on the clock of {} since the profiles were gathered, to {:.1f} us",
                    found.first.size() == 1 ? "host " + *found.first.begin()
                                            : fmt::format("{} hosts", found.first.size()),
                    clock, static_cast<double>(found.second) / 1e3));
  }
}

// Ends of device kernels agree within microseconds inside a host; their median difference between hosts
// is the difference of the clocks.
void Matcher::align_hosts() {
  offset_.assign(set_.ranks.size(), 0);
  tell_aligned();
  std::map<std::string, std::vector<int64_t>> differences;
  const std::string& reference = clock_of(set_.ranks.front());
  for (const auto& [key, members] : exact_) {
    std::map<std::string, std::pair<int64_t, int64_t>> ends;  // sum relative to the first member, count
    for (const MatchedMember& member : members) {
      const RankProfile& profile = set_.ranks[member.rank_row];
      if (profile.on_host || clock_of(profile).empty()) continue;
      auto& [sum, count] = ends[clock_of(profile)];
      sum += member.end_ns - members.front().end_ns;
      ++count;
    }
    const auto base = ends.find(reference);
    if (base == ends.end()) continue;
    for (const auto& [host, end] : ends) {
      if (host == reference) continue;
      differences[host].push_back(end.first / end.second - base->second.first / base->second.second);
    }
  }
  for (auto& [host, values] : differences) {
    std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                     values.end());
    const int64_t offset = values[values.size() / 2];
    for (size_t row = 0; row < set_.ranks.size(); ++row) {
      if (clock_of(set_.ranks[row]) == host) offset_[row] = offset;
    }
    result_.findings.push_back(
        fmt::format("clock of host {} is {:.3f} ms from that of {}, and was aligned by the "
                    "ends of {} calls",
                    host, static_cast<double>(offset) / 1e6, reference, values.size()));
  }
  std::set<std::string> others;
  for (const RankProfile& profile : set_.ranks) {
    const std::string& clock = clock_of(profile);
    if (clock != reference && !differences.contains(clock)) others.insert(clock);
  }
  if (!others.empty()) {
    result_.findings.push_back(fmt::format(
        "clocks of {} hosts are taken as they are: no calls by which to align them", others.size() + 1));
  }
  const auto shift = [&](MatchedMember& member) {
    member.start_ns -= offset_[member.rank_row];
    member.end_ns -= offset_[member.rank_row];
  };
  for (auto& [key, members] : exact_) std::for_each(members.begin(), members.end(), shift);
  for (auto& [key, ordered] : ordered_) {
    for (auto& [row, members] : ordered.calls_of_rank) std::for_each(members.begin(), members.end(), shift);
  }
}

// No rank can leave a collective before the last has come. Clocks may be off by as much as those say who
// aligned them.
bool Matcher::possible(const Members& members) const {
  constexpr int64_t kTolerance = 20'000;
  int64_t start = INT64_MIN, first_end = INT64_MAX, clock_error = 0;
  for (const MatchedMember& member : members) {
    clock_error = std::max(clock_error, set_.ranks[member.rank_row].run.clock_error_ns);
    start = std::max(start, member.start_ns);
    first_end = std::min(first_end, member.end_ns);
  }
  return first_end + kTolerance + 2 * clock_error >= start;
}

// Of these, a rank that only gives may be gone before another comes: it waits for nobody.
bool has_givers(std::string_view collective) {
  std::string name(collective);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("all") || has("barrier") || (has("reduce") && has("scatter"))) return false;
  return has("broadcast") || has("reduce") || has("gather") || has("scatter");
}

// For calls that only their order pairs: on devices, all ranks leave one call together.
bool Matcher::plausible(const Members& members) const {
  constexpr int64_t kSkew = 1'000'000;
  int64_t first_end = INT64_MAX, last_end = INT64_MIN;
  bool on_host = false;
  for (const MatchedMember& member : members) {
    first_end = std::min(first_end, member.end_ns);
    last_end = std::max(last_end, member.end_ns);
    on_host |= set_.ranks[member.rank_row].on_host;
  }
  return possible(members) && (on_host || last_end - first_end <= kSkew);
}

void Matcher::accept(Members members) {
  if (members.size() < 2) return;
  MatchedCall call;
  std::vector<int64_t> starts;
  call.shortest_ns = INT64_MAX;
  for (uint32_t i = 0; i < members.size(); ++i) {
    starts.push_back(members[i].start_ns);
    if (members[i].start_ns > members[call.latest].start_ns) call.latest = i;
    call.shortest_ns = std::min(call.shortest_ns, members[i].end_ns - members[i].start_ns);
  }
  const auto middle = starts.begin() + static_cast<ptrdiff_t>((starts.size() - 1) / 2);
  std::nth_element(starts.begin(), middle, starts.end());
  call.median_start_ns = *middle;
  call.latest_start_ns = members[call.latest].start_ns;
  call.members = std::move(members);
  result_.calls.push_back(std::move(call));
}

// All ranks together, and each family of groups of one size that the profiles name.
std::vector<std::vector<std::set<uint32_t>>> Matcher::partitions(const OrderedClass& ordered) const {
  std::map<int, uint32_t> row_of;
  std::set<uint32_t> all;
  for (const auto& [row, calls] : ordered.calls_of_rank) row_of[set_.ranks[row].rank] = row, all.insert(row);
  std::map<std::pair<std::string, size_t>, std::set<std::set<uint32_t>>> families;
  for (const auto& [rank, row] : row_of) {
    for (const ProfiledGroup& group : set_.ranks[row].groups) {
      std::set<uint32_t> rows;
      for (const int member : group.ranks) {
        if (const auto at = row_of.find(member); at != row_of.end()) rows.insert(at->second);
      }
      if (rows.size() > 1 && rows != all) families[{group.description, group.ranks.size()}].insert(rows);
    }
  }
  std::vector<std::vector<std::set<uint32_t>>> result{{all}};
  for (const auto& [key, groups] : families) result.emplace_back(groups.begin(), groups.end());
  return result;
}

// The k-th calls of the ranks of each group; returns how many of them can be.
size_t Matcher::match_partition(const OrderedClass& ordered, const std::vector<std::set<uint32_t>>& groups,
                                std::vector<Members>* matched) const {
  size_t sound = 0;
  for (const std::set<uint32_t>& group : groups) {
    size_t count = SIZE_MAX;
    for (const uint32_t row : group) count = std::min(count, ordered.calls_of_rank.at(row).size());
    for (size_t k = 0; k < count; ++k) {
      Members members;
      for (const uint32_t row : group) members.push_back(ordered.calls_of_rank.at(row)[k]);
      sound += plausible(members) ? members.size() : 0;
      matched->push_back(std::move(members));
    }
  }
  return sound;
}

void Matcher::match_class(OrderedClass* ordered) {
  if (ordered->calls_of_rank.size() < 2) return;
  size_t least = SIZE_MAX, most = 0;
  for (const auto& [row, calls] : ordered->calls_of_rank) {
    least = std::min(least, calls.size());
    most = std::max(most, calls.size());
  }
  std::vector<Members> best;
  size_t best_sound = 0;
  for (const auto& groups : partitions(*ordered)) {
    std::vector<Members> matched;
    const size_t sound = match_partition(*ordered, groups, &matched);
    if (sound > best_sound || best.empty()) best_sound = sound, best = std::move(matched);
  }
  if (least != most) {
    result_.findings.push_back(
        fmt::format("{}: between {} and {} calls per rank; paired by order as far as the times allow",
                    ordered->name, least, most));
  }
  for (Members& members : best) {
    if (plausible(members)) {
      accept(std::move(members));
    } else {
      result_.implausible += has_givers(ordered->name) ? 0 : 1;
    }
  }
}

// Collectives in which all ranks have one size: of all-to-all, gather and scatter they may differ.
bool has_one_size(std::string_view collective) {
  for (const std::string_view part : {"allreduce", "all_reduce", "AllReduce", "allReduce", "broadcast",
                                      "allgather", "all_gather", "reduce_scatter", "reducescatter"}) {
    if (collective.find(part) != std::string_view::npos) return true;
  }
  return false;
}

std::string rank_ranges(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", text_of(ranks));
}

// Whether the ranks called the same, as far as their profiles say what they called.
void Matcher::compare(const std::string& key, const Members& members) {
  const RankProfile& first = set_.ranks[members.front().rank_row];
  const ProfiledCall& call = call_of(set_, members.front());
  const std::string_view collective = first.names[call.collective];
  for (const MatchedMember& member : members) {
    const RankProfile& profile = set_.ranks[member.rank_row];
    const ProfiledCall& other = call_of(set_, member);
    std::string text;
    if (call.sequence >= 0 && profile.names[other.collective] != collective) {
      text = fmt::format("call {} of group {}: rank {} calls {}, rank {} calls {}", call.sequence,
                         group_key(first, call.group), first.rank, collective, profile.rank,
                         profile.names[other.collective]);
    } else if (has_one_size(collective) && other.elements != call.elements) {
      text = fmt::format("{}: rank {} has {} elements, rank {} has {}", collective, first.rank, call.elements,
                         profile.rank, other.elements);
    } else if (call.type != kNone && other.type != kNone &&
               profile.names[other.type] != first.names[call.type]) {
      text = fmt::format("{}: rank {} has elements of {}, rank {} of {}", collective, first.rank,
                         first.names[call.type], profile.rank, profile.names[other.type]);
    }
    if (text.empty()) continue;
    if (call.sequence >= 0) text += fmt::format(" (call {})", call.sequence);
    differing_.emplace_back(key, std::move(text));
    return;
  }
}

// A call that some rank has not ended: who is in it, and whose profile shows that it never came.
void Matcher::explain_unfinished(const Members& members) {
  const ProfiledCall* unfinished = nullptr;
  std::vector<int> inside;
  for (const MatchedMember& member : members) {
    const ProfiledCall& call = call_of(set_, member);
    if (call.state == CallState::kCompleted) continue;
    inside.push_back(set_.ranks[member.rank_row].rank);
    unfinished = &call;
  }
  if (unfinished == nullptr) return;
  const RankProfile& profile = set_.ranks[members.front().rank_row];
  const ProfiledCall& named = call_of(set_, members.front());
  const std::string_view name = profile.names[named.group];
  std::string text = fmt::format("{}, call {} of group {}, has not ended on {}",
                                 profile.names[named.collective], named.sequence, name, rank_ranges(inside));
  std::vector<int> absent;
  for (const ProfiledGroup& group : profile.groups) {
    if (group.hash != name) continue;
    for (const int rank : group.ranks) {
      const auto has = [&](const MatchedMember& member) { return set_.ranks[member.rank_row].rank == rank; };
      const bool known = std::any_of(set_.ranks.begin(), set_.ranks.end(),
                                     [&](const RankProfile& other) { return other.rank == rank; });
      if (known && std::none_of(members.begin(), members.end(), has)) absent.push_back(rank);
    }
  }
  if (!absent.empty()) text += fmt::format("; {} never called it: look there first", rank_ranges(absent));
  unfinished_.emplace_back(named.sequence, std::move(text));
}

// The first of them explains the others: they are sorted by their number.
void Matcher::add_findings() {
  const auto add = [&](auto* list, std::string_view more) {
    std::sort(list->begin(), list->end());
    for (size_t i = 0; i < list->size() && i < kMostFindings; ++i) {
      result_.findings.push_back(std::move((*list)[i].second));
    }
    if (list->size() > kMostFindings) result_.findings.push_back(fmt::format("{} {}", list->size(), more));
  };
  add(&unfinished_, "calls have not ended");
  add(&differing_, "calls differ between ranks");
}

Matching Matcher::run() {
  if (set_.ranks.size() < 2) {
    result_.offset_ns.assign(set_.ranks.size(), 0);
    return std::move(result_);
  }
  collect();
  align_hosts();
  for (auto& [key, members] : exact_) {
    explain_unfinished(members);
    compare(key, members);
    std::erase_if(members, [&](const MatchedMember& member) {
      return call_of(set_, member).state != CallState::kCompleted;
    });
    if (members.size() > 1 && !possible(members)) {
      const MatchedMember& first = members.front();
      const std::string_view name = set_.ranks[first.rank_row].names[call_of(set_, first).collective];
      result_.implausible += has_givers(name) ? 0 : 1;
      continue;
    }
    accept(std::move(members));
  }
  for (auto& [key, ordered] : ordered_) match_class(&ordered);
  add_findings();
  // Ties are broken by rank and row, so that the order does not depend on a hash.
  std::sort(result_.calls.begin(), result_.calls.end(), [](const MatchedCall& a, const MatchedCall& b) {
    return std::tuple(a.latest_start_ns, a.members[0].rank_row, a.members[0].call_row) <
           std::tuple(b.latest_start_ns, b.members[0].rank_row, b.members[0].call_row);
  });
  result_.offset_ns = std::move(offset_);
  return std::move(result_);
}

}  // namespace

Matching match_calls(const ProfileSet& set) { return Matcher(set).run(); }

}  // namespace collective_ops
