// Rows that the step tables share: where a rank stands in the parallelism, and the stages of a pipeline.
#pragma once

#include <vector>

#include "analysis/profile_set.h"

namespace collective_ops {

struct RankPlace {
  bool known = false;
  int data = 0, pipeline = 0, tensor = 0;
};
// Ranks are numbered tensor first, then context, then data, and pipeline last.
RankPlace place_of(const RankProfile& profile);

// The stage's slowest rank in one step, all figures from it: those of several ranks would not add up.
struct StageTime {
  std::vector<int> ranks;
  const StepTime* time = nullptr;
};
std::vector<StageTime> stage_times(const ProfileSet& set);  // by step, then stage

}  // namespace collective_ops
