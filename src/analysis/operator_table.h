// Operators and kernels over all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/profile_set.h"

namespace collective_ops {

struct OperatorRow {
  std::string name, type;
  OperatorKind kind = OperatorKind::kCompute;
  int rank = -1;  // -1: all ranks
  uint64_t count = 0;
  int64_t total_ns = 0, min_ns = 0, max_ns = 0;
  double squares = 0;  // sum of (ns)^2
  double share = 0;    // of the time of its kind
  // Ranks that have it: the least and the largest total, and whose that is.
  int64_t least_ns = 0, most_ns = 0;
  int least_rank = -1, most_rank = -1;

  double mean_ns() const { return static_cast<double>(total_ns) / static_cast<double>(count); }
  double deviation_ns() const;  // of the sample: n - 1
};

std::string_view name_of(OperatorKind kind);

// By name, type and kind, over all ranks; most time first within a kind.
std::vector<OperatorRow> operator_table(const ProfileSet& set);

// Compute kernels by type: all ranks first, then rank by rank. `name` is empty.
std::vector<OperatorRow> compute_types(const ProfileSet& set);

}  // namespace collective_ops
