#include "analysis/links.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace collective_ops {
namespace {

// Below this share of the median of its kind a link is slow; equal links differ by a few per cent.
constexpr double kSlow = 0.7;
constexpr size_t kLeastLinks = 4;      // fewer have no median worth the name
constexpr double kLeastMegabytes = 1;  // small transfers measure latency

std::vector<LinkSpeed> speeds_of(const ProfileSet& set, const ClusterGroups& groups) {
  std::map<std::tuple<std::string_view, int, int>, LinkSpeed> links;
  for (const RankProfile& profile : set.ranks) {
    for (const MatrixEntry& entry : profile.matrix) {
      const std::string_view name = profile.names[entry.name];
      // Sums by kind; of messages each operator stands for itself.
      if (!name.ends_with("-total") && !(entry.point_to_point && name.find("__") != std::string_view::npos))
        continue;
      const auto& part = entry.point_to_point ? groups.point_to_point : groups.by_hash;
      const std::vector<int>& locals = part.find(std::string(profile.names[entry.group]))->second.locals;
      const auto last = static_cast<int>(locals.size());
      if (entry.source == entry.destination || entry.source >= last || entry.destination >= last) continue;
      const int source = locals[static_cast<size_t>(entry.source)];
      const int destination = locals[static_cast<size_t>(entry.destination)];
      const std::string_view transport = profile.names[entry.transport];
      LinkSpeed& link = links[{transport, source, destination}];
      link.source = source;
      link.destination = destination;
      link.transport = transport;
      link.megabytes += entry.megabytes;
      link.milliseconds += entry.milliseconds;
    }
  }
  std::vector<LinkSpeed> result;
  for (auto& [key, link] : links) {
    if (link.milliseconds <= 0) continue;
    link.gigabytes_per_second = link.megabytes / link.milliseconds;
    result.push_back(std::move(link));
  }
  return result;
}

double median_speed(const std::vector<const LinkSpeed*>& links) {
  std::vector<double> speeds;
  speeds.reserve(links.size());
  for (const LinkSpeed* link : links) speeds.push_back(link->gigabytes_per_second);
  const auto middle = speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

// Where most links of one rank are slow it is the rank (its card, its network port), not a cable.
std::string cause_of(const SlowLink& slow, const std::vector<const LinkSpeed*>& kind,
                     const std::vector<SlowLink>& all) {
  for (const int rank : {slow.link.source, slow.link.destination}) {
    const auto touches = [&](const LinkSpeed& link) {
      return link.source == rank || link.destination == rank;
    };
    const auto of_rank =
        std::count_if(kind.begin(), kind.end(), [&](const LinkSpeed* link) { return touches(*link); });
    const auto slow_ones = std::count_if(all.begin(), all.end(), [&](const SlowLink& other) {
      return other.link.transport == slow.link.transport && touches(other.link);
    });
    if (of_rank >= 3 && slow_ones * 3 >= of_rank * 2) {
      return fmt::format("{} of {} {} links of rank {} are slow: its card or port", slow_ones, of_rank,
                         slow.link.transport, rank);
    }
  }
  return "this link alone: other links of both ranks are as fast as usual";
}

}  // namespace

LinkAnalysis analyze_links(const ProfileSet& set, const ClusterGroups& groups) {
  LinkAnalysis analysis;
  analysis.links = speeds_of(set, groups);
  std::map<std::string, std::vector<const LinkSpeed*>> kinds;
  for (const LinkSpeed& link : analysis.links) {
    if (link.megabytes >= kLeastMegabytes) kinds[link.transport].push_back(&link);
  }
  for (const auto& [transport, links] : kinds) {
    if (links.size() < kLeastLinks) continue;
    const double usual = median_speed(links);
    for (const LinkSpeed* link : links) {
      if (link->gigabytes_per_second >= kSlow * usual) continue;
      analysis.slow.push_back({*link, usual, link->milliseconds - link->megabytes / usual, ""});
    }
  }
  for (SlowLink& slow : analysis.slow) slow.cause = cause_of(slow, kinds[slow.link.transport], analysis.slow);
  std::stable_sort(analysis.slow.begin(), analysis.slow.end(),
                   [](const SlowLink& a, const SlowLink& b) { return a.lost_ms > b.lost_ms; });
  return analysis;
}

}  // namespace collective_ops
