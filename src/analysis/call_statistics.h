// How long calls of each kind take, over all ranks and per rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/profile_set.h"

namespace collective_ops {

struct CallStatistics {
  std::string collective;
  int rank = -1;  // -1: all ranks
  uint64_t count = 0;
  double mean_ns = 0, deviation_ns = 0;        // of the sample: n - 1
  double q1_ns = 0, median_ns = 0, q3_ns = 0;  // linear between neighbours
  int64_t min_ns = 0, max_ns = 0, sum_ns = 0;
};

// All ranks first, largest sum first; then rank by rank.
std::vector<CallStatistics> call_statistics(const ProfileSet& set);

}  // namespace collective_ops
