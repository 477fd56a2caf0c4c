#include "analysis/communication_classes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <tuple>
#include <utility>

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// "_allgather_base", "gloo:all_gather", "hcom_allGather_" -> "allgather"; templates of kernels stay as long.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != '_') text.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return text;
}

int64_t size_of_type(std::string_view name) {
  struct Row {
    std::string_view start;
    int64_t bytes;
  };
  static constexpr std::array kRows = {
      Row{"float8", 1}, Row{"float16", 2},  Row{"float64", 8}, Row{"float", 4},  Row{"double", 8},
      Row{"half", 2},   Row{"bfloat16", 2}, Row{"int8", 1},    Row{"int16", 2},  Row{"int64", 8},
      Row{"int", 4},    Row{"uint8", 1},    Row{"uint16", 2},  Row{"uint64", 8}, Row{"uint", 4},
      Row{"long", 8},   Row{"short", 2},    Row{"byte", 1},    Row{"char", 1},   Row{"unsigned char", 1},
      Row{"bool", 1}};
  const std::string text = plain(name);
  for (const Row& row : kRows) {
    if (text.starts_with(row.start)) return row.bytes;
  }
  return 0;
}

// Of the whole call: all-reduce the buffer, all-gather the output, reduce-scatter the input. 0: not known.
double bytes_of(const RankProfile& profile, const ProfiledCall& call, size_t members) {
  if (call.elements < 0 || call.type == kNone) return 0;
  const std::string_view name = profile.names[call.collective];
  const double bytes =
      static_cast<double>(call.elements) * static_cast<double>(size_of_type(profile.names[call.type]));
  // Gloo's own ranges tell the input alone.
  return name.starts_with("gloo:all_gather") ? bytes * static_cast<double>(members) : bytes;
}

double bus_share(std::string_view collective, size_t members) {
  const std::string name = plain(collective);
  const auto n = static_cast<double>(std::max<size_t>(members, 1));
  if (contains(name, "allreduce")) return 2 * (n - 1) / n;
  for (const std::string_view part : {"allgather", "reducescatter", "alltoall"}) {
    if (contains(name, part)) return (n - 1) / n;
  }
  return 1;
}

std::string size_class_of(double bytes) {
  static constexpr std::array<std::string_view, 7> kBounds = {"0",     "4KiB",   "64KiB", "1MiB",
                                                              "16MiB", "256MiB", ""};
  if (bytes <= 0) return {};
  size_t i = 0;
  for (double bound = 4096; i + 2 < kBounds.size() && bytes >= bound; bound *= 16) ++i;
  return std::string(kBounds[i]) + "-" + std::string(kBounds[i + 1]);
}

class Classes {
 public:
  Classes(const ProfileSet& set, const WaitAnalysis& waits) : set_(set), waits_(waits) {}
  std::vector<CommunicationClass> run();

 private:
  struct Sum {
    CommunicationClass row;
    double algorithm_bytes = 0, bus_bytes = 0;
    std::map<int, double> late, slow;  // rank -> ms
  };
  struct Named {
    std::string group;
    size_t members = 0;  // 0: not known
  };
  Named group_of(const RankProfile& profile, uint32_t group);
  Sum& sum_of(const RankProfile& profile, const ProfiledCall& call, const Named& group, double bytes);
  void add(const MatchedCall& call);

  const ProfileSet& set_;
  const WaitAnalysis& waits_;
  std::map<std::tuple<std::string, std::string, std::string>, Sum> sums_;
};

Classes::Named Classes::group_of(const RankProfile& profile, uint32_t group) {
  if (group == kNone) return {};
  const std::string_view name = profile.names[group];
  for (const ProfiledGroup& known : profile.groups) {
    if (known.hash == name) {
      return {known.description.empty() ? known.hash : known.description, known.ranks.size()};
    }
  }
  return {std::string(name), 0};
}

Classes::Sum& Classes::sum_of(const RankProfile& profile, const ProfiledCall& call, const Named& group,
                              double bytes) {
  const double size = bytes > 0 ? bytes : static_cast<double>(std::max<int64_t>(call.link_bytes, 0));
  auto key = std::tuple(group.group, std::string(profile.names[call.collective]), size_class_of(size));
  Sum& sum = sums_[key];
  std::tie(sum.row.group, sum.row.collective, sum.row.size_class) = std::move(key);
  return sum;
}

void Classes::add(const MatchedCall& call) {
  const MatchedMember& first = call.members.front();
  const RankProfile& profile = set_.ranks[first.rank_row];
  const ProfiledCall& own = profile.calls[first.call_row];
  const Named group = group_of(profile, own.group);
  const size_t members = std::max(group.members, call.members.size());
  const double bytes = bytes_of(profile, own, members);
  Sum& sum = sum_of(profile, own, group, bytes);
  int64_t start = INT64_MAX, end = INT64_MIN, first_end = INT64_MAX, link_bytes = 0;
  const MatchedMember* slowest = &first;
  for (const MatchedMember& member : call.members) {
    start = std::min(start, member.start_ns);
    end = std::max(end, member.end_ns);
    first_end = std::min(first_end, member.end_ns);
    if (member.end_ns > slowest->end_ns) slowest = &member;
    link_bytes += std::max<int64_t>(set_.ranks[member.rank_row].calls[member.call_row].link_bytes, 0);
  }
  const auto milliseconds = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
  const int64_t last_start = std::min(call.latest_start_ns, end);
  ++sum.row.calls;
  sum.row.elapsed_ms += milliseconds(end - start);
  sum.row.waiting_ms += milliseconds(last_start - start);
  sum.row.moving_ms += milliseconds(end - last_start);
  // Profilers of cards count what each rank sent: that is what a link carries.
  const double sent = static_cast<double>(link_bytes) / static_cast<double>(call.members.size());
  sum.row.bytes += bytes > 0 ? bytes : sent;
  sum.algorithm_bytes += bytes;
  sum.bus_bytes += bytes > 0 ? bytes * bus_share(sum.row.collective, members) : sent;
  const int latest = set_.ranks[call.members[call.latest].rank_row].rank;
  sum.late[latest] += milliseconds(call.latest_start_ns - call.median_start_ns);
  sum.slow[set_.ranks[slowest->rank_row].rank] += milliseconds(end - first_end);
}

int most_of(const std::map<int, double>& ranks) {
  const auto most = std::max_element(ranks.begin(), ranks.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == ranks.end() || most->second <= 0 ? -1 : most->first;
}

std::vector<CommunicationClass> Classes::run() {
  std::vector<std::vector<bool>> matched(set_.ranks.size());
  for (size_t row = 0; row < set_.ranks.size(); ++row) matched[row].resize(set_.ranks[row].calls.size());
  for (const MatchedCall& call : waits_.calls) {
    add(call);
    for (const MatchedMember& member : call.members) matched[member.rank_row][member.call_row] = true;
  }
  for (size_t row = 0; row < set_.ranks.size(); ++row) {
    const RankProfile& profile = set_.ranks[row];
    for (size_t i = 0; i < profile.calls.size(); ++i) {
      const ProfiledCall& call = profile.calls[i];
      if (matched[row][i] || call.state != CallState::kCompleted) continue;
      const Named group = group_of(profile, call.group);
      Sum& sum = sum_of(profile, call, group, bytes_of(profile, call, std::max<size_t>(group.members, 1)));
      ++sum.row.single;
      sum.row.elapsed_ms += static_cast<double>(call.end_ns - call.start_ns) / 1e6;
    }
  }
  std::vector<CommunicationClass> result;
  for (auto& [key, sum] : sums_) {
    if (sum.row.moving_ms > 0) {
      sum.row.algorithm_gb_s = sum.algorithm_bytes / sum.row.moving_ms / 1e6;
      sum.row.bus_gb_s = sum.bus_bytes / sum.row.moving_ms / 1e6;
    }
    sum.row.slowest_rank = most_of(sum.slow);
    sum.row.latest_rank = most_of(sum.late);
    result.push_back(std::move(sum.row));
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return std::tie(a.group, b.elapsed_ms) < std::tie(b.group, a.elapsed_ms);
  });
  return result;
}

}  // namespace

std::vector<CommunicationClass> communication_classes(const ProfileSet& set, const WaitAnalysis& waits) {
  return Classes(set, waits).run();
}

}  // namespace collective_ops
