// Sums over the operators of a group, and the ratios that the profilers print with four digits.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "analysis/profile.h"

namespace collective_ops {

inline double rounded(double value) { return std::round(value * 1e4) / 1e4; }
inline double bandwidth(double megabytes, double milliseconds) {
  return milliseconds > 0 ? rounded(megabytes / milliseconds) : 0;
}
inline double ratio(double part, double transit) {
  return part + transit > 0 ? rounded(part / (part + transit)) : 0;
}

struct OperatorTotal {
  OperatorTimes times;
  std::map<std::string_view, LinkTraffic> links;

  void add(const RankProfile& profile, const CommunicationOperator& op) {
    times.elapse_ms += op.times.elapse_ms;
    times.transit_ms += op.times.transit_ms;
    times.wait_ms += op.times.wait_ms;
    times.synchronization_ms += op.times.synchronization_ms;
    times.idle_ms += op.times.idle_ms;
    for (const LinkTraffic& link : op.links) {
      LinkTraffic& sum = links[profile.names[link.link]];
      sum.megabytes += link.megabytes;
      sum.milliseconds += link.milliseconds;
      for (const SizeClass& size : link.sizes) {
        const auto same = std::find_if(sum.sizes.begin(), sum.sizes.end(), [&](const SizeClass& other) {
          return other.megabytes == size.megabytes;
        });
        if (same == sum.sizes.end()) {
          sum.sizes.push_back(size);
        } else {
          same->count += size.count;
          same->milliseconds += size.milliseconds;
        }
      }
    }
  }
};

}  // namespace collective_ops
