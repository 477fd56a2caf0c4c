#include "analysis/call_statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace collective_ops {
namespace {

double quantile(const std::vector<int64_t>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const auto a = static_cast<double>(sorted[low]), b = static_cast<double>(sorted[high]);
  return a + (b - a) * (place - static_cast<double>(low));
}

CallStatistics statistics_of(const std::string& collective, int rank, std::vector<int64_t> durations) {
  std::sort(durations.begin(), durations.end());
  CallStatistics result;
  result.collective = collective;
  result.rank = rank;
  result.count = durations.size();
  result.sum_ns = std::accumulate(durations.begin(), durations.end(), int64_t{0});
  result.mean_ns = static_cast<double>(result.sum_ns) / static_cast<double>(durations.size());
  double squares = 0;
  for (const int64_t duration : durations)
    squares += std::pow(static_cast<double>(duration) - result.mean_ns, 2);
  if (durations.size() > 1)
    result.deviation_ns = std::sqrt(squares / static_cast<double>(durations.size() - 1));
  result.min_ns = durations.front();
  result.max_ns = durations.back();
  result.q1_ns = quantile(durations, 0.25);
  result.median_ns = quantile(durations, 0.5);
  result.q3_ns = quantile(durations, 0.75);
  return result;
}

}  // namespace

std::vector<CallStatistics> call_statistics(const ProfileSet& set) {
  std::map<std::string, std::vector<int64_t>> all;
  std::vector<CallStatistics> per_rank;
  for (const RankProfile& profile : set.ranks) {
    std::map<std::string_view, std::vector<int64_t>> own;
    for (const ProfiledCall& call : profile.calls) {
      own[profile.names[call.collective]].push_back(call.end_ns - call.start_ns);
    }
    for (auto& [collective, durations] : own) {
      auto& sum = all[std::string(collective)];
      sum.insert(sum.end(), durations.begin(), durations.end());
      per_rank.push_back(statistics_of(std::string(collective), profile.rank, std::move(durations)));
    }
  }
  std::vector<CallStatistics> result;
  result.reserve(all.size() + per_rank.size());
  for (auto& [collective, durations] : all)
    result.push_back(statistics_of(collective, -1, std::move(durations)));
  std::stable_sort(result.begin(), result.end(),
                   [](const CallStatistics& a, const CallStatistics& b) { return a.sum_ns > b.sum_ns; });
  result.insert(result.end(), per_rank.begin(), per_rank.end());
  return result;
}

}  // namespace collective_ops
