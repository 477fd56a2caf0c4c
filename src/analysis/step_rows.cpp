#include "analysis/step_rows.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "analysis/cluster_groups.h"

namespace collective_ops {
namespace {

const StepTime* slowest_of(const ProfileSet& set, const std::vector<int>& stage, const std::string& step) {
  const StepTime* slowest = nullptr;
  const auto length = [](const StepTime& time) { return time.stage_us + time.bubble_us; };
  for (const RankProfile& profile : set.ranks) {
    if (!std::binary_search(stage.begin(), stage.end(), profile.rank)) continue;
    for (const StepTime& time : profile.steps) {
      if (time.step == step && (slowest == nullptr || length(time) > length(*slowest))) slowest = &time;
    }
  }
  return slowest;
}

}  // namespace

RankPlace place_of(const RankProfile& profile) {
  const ParallelSizes& sizes = profile.parallel;
  const auto or_one = [](int size) { return std::max(size, 1); };
  const int64_t tensor = or_one(sizes.tensor), context = or_one(sizes.context),
                pipeline = or_one(sizes.pipeline);
  const int64_t rest = tensor * context * pipeline;
  if (sizes.world <= 0 || sizes.tensor <= 0) return {};
  const int64_t data = sizes.data > 0 ? sizes.data : sizes.world / rest;
  if (data < 1 || rest * data != sizes.world) return {};
  const int64_t rank = profile.rank;
  return {true, static_cast<int>(rank / (tensor * context) % data),
          static_cast<int>(rank / (tensor * context * data)), static_cast<int>(rank % tensor)};
}

std::vector<StageTime> stage_times(const ProfileSet& set) {
  std::vector<std::string> steps;
  for (const RankProfile& profile : set.ranks) {
    for (const StepTime& time : profile.steps) {
      if (std::find(steps.begin(), steps.end(), time.step) == steps.end()) steps.push_back(time.step);
    }
  }
  std::vector<StageTime> result;
  const std::vector<std::vector<int>> stages = pipeline_stages(set);
  for (const std::string& step : steps) {
    for (const std::vector<int>& stage : stages) {
      if (const StepTime* time = slowest_of(set, stage, step); time != nullptr)
        result.push_back({stage, time});
    }
  }
  return result;
}

}  // namespace collective_ops
