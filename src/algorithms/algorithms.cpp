#include "algorithms/algorithms.h"

#include <array>
#include <vector>

namespace collective_ops {
namespace {

constexpr std::array kAlgorithms = {
    Algorithm{"arrival", Collective::kBarrier, barrier_arrival},
    Algorithm{"one_shot", Collective::kAllReduce, all_reduce_one_shot},
    Algorithm{"direct", Collective::kAllReduce, all_reduce_direct},
    Algorithm{"two_shot", Collective::kAllReduce, all_reduce_two_shot},
    Algorithm{"read", Collective::kAllReduce, all_reduce_read},
    Algorithm{"ring", Collective::kAllReduce, all_reduce_ring},
    Algorithm{"tree", Collective::kAllReduce, all_reduce_tree},
    Algorithm{"recursive_doubling", Collective::kAllReduce, all_reduce_recursive_doubling},
    Algorithm{"halving_doubling", Collective::kAllReduce, all_reduce_halving_doubling},
    Algorithm{"nhr", Collective::kAllReduce, all_reduce_nhr},
    Algorithm{"double_tree", Collective::kAllReduce, all_reduce_double_tree},
    Algorithm{"one_shot", Collective::kBroadcast, broadcast_one_shot},
    Algorithm{"direct", Collective::kBroadcast, broadcast_direct},
    Algorithm{"push", Collective::kBroadcast, broadcast_push},
    Algorithm{"staged", Collective::kBroadcast, broadcast_staged},
    Algorithm{"tree", Collective::kBroadcast, broadcast_tree},
    Algorithm{"nhr", Collective::kBroadcast, broadcast_nhr},
    Algorithm{"one_shot", Collective::kAllGather, all_gather_one_shot},
    Algorithm{"direct", Collective::kAllGather, all_gather_direct},
    Algorithm{"push", Collective::kAllGather, all_gather_push},
    Algorithm{"staged", Collective::kAllGather, all_gather_staged},
    Algorithm{"ring", Collective::kAllGather, all_gather_ring},
    Algorithm{"halving_doubling", Collective::kAllGather, all_gather_halving_doubling},
    Algorithm{"nhr", Collective::kAllGather, all_gather_nhr},
    Algorithm{"bruck", Collective::kAllGather, all_gather_bruck},
    Algorithm{"one_shot", Collective::kReduceScatter, reduce_scatter_one_shot},
    Algorithm{"direct", Collective::kReduceScatter, reduce_scatter_direct},
    Algorithm{"staged", Collective::kReduceScatter, reduce_scatter_staged},
    Algorithm{"ring", Collective::kReduceScatter, reduce_scatter_ring},
    Algorithm{"halving_doubling", Collective::kReduceScatter, reduce_scatter_halving_doubling},
    Algorithm{"nhr", Collective::kReduceScatter, reduce_scatter_nhr},
    Algorithm{"one_shot", Collective::kReduce, reduce_one_shot},
    Algorithm{"direct", Collective::kReduce, reduce_direct},
    Algorithm{"pull", Collective::kReduce, reduce_pull},
    Algorithm{"staged", Collective::kReduce, reduce_staged},
    Algorithm{"tree", Collective::kReduce, reduce_tree},
    Algorithm{"nhr", Collective::kReduce, reduce_nhr},
    Algorithm{"one_shot", Collective::kGather, gather_one_shot},
    Algorithm{"direct", Collective::kGather, gather_direct},
    Algorithm{"push", Collective::kGather, gather_push},
    Algorithm{"staged", Collective::kGather, gather_staged},
    Algorithm{"linear", Collective::kGather, gather_linear},
    Algorithm{"tree", Collective::kGather, gather_tree},
    Algorithm{"one_shot", Collective::kScatter, scatter_one_shot},
    Algorithm{"direct", Collective::kScatter, scatter_direct},
    Algorithm{"staged", Collective::kScatter, scatter_staged},
    Algorithm{"linear", Collective::kScatter, scatter_linear},
    Algorithm{"tree", Collective::kScatter, scatter_tree},
    Algorithm{"one_shot", Collective::kAllToAll, all_to_all_one_shot},
    Algorithm{"direct", Collective::kAllToAll, all_to_all_direct},
    Algorithm{"staged", Collective::kAllToAll, all_to_all_staged},
    Algorithm{"pairwise", Collective::kAllToAll, all_to_all_pairwise},
    Algorithm{"bruck", Collective::kAllToAll, all_to_all_bruck},
};

std::vector<Plan> make_plans() {
  std::vector<Plan> plans;
  for (const Algorithm& algorithm : kAlgorithms) plans.push_back(algorithm.make());
  return plans;
}

}  // namespace

Collective without_counts(Collective collective) {
  switch (collective) {
    case Collective::kAllGatherV:
      return Collective::kAllGather;
    case Collective::kReduceScatterV:
      return Collective::kReduceScatter;
    case Collective::kGatherV:
      return Collective::kGather;
    case Collective::kScatterV:
      return Collective::kScatter;
    case Collective::kAllToAllV:
      return Collective::kAllToAll;
    default:
      return collective;
  }
}

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Plan* find_plan(Collective collective, std::string_view name) {
  // Never destroyed: a thread may still run a plan while the process exits.
  static const std::vector<Plan>& plans = *new std::vector<Plan>(make_plans());
  for (size_t i = 0; i < plans.size(); ++i) {
    if (kAlgorithms[i].collective == collective && kAlgorithms[i].name == name) return &plans[i];
  }
  return nullptr;
}

}  // namespace collective_ops
