// Between hosts: each half of the vector goes up and down a binary tree of its own, and who has children in
// one of them has none in the other, so that all ranks send about 2S, chunk by chunk, with a latency of
// 2 ceil(log2 n) chunks. The result of a chunk comes down while later ones go up.
#include <vector>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_double_tree() {
  Plan plan{.name = "double_tree", .collective = Collective::kAllReduce, .rank_ordered = false};
  const int in_flight =
      8;  // chunks that go up before the first comes down: about twice the depth of the trees
  plan.loops = {once({arrive(), await_others(), copy(whole(Space::kOutput), whole(Space::kInput))}),
                chunks({})};
  std::vector<Statement>& body = plan.loops.back().body;
  for (uint8_t tree : {0, 1}) {
    const Ref sum = half(Space::kOutput, tree + 1);
    const RankTerm parent{.base = RankTerm::Base::kParent, .tree = tree};
    for (const auto base : {RankTerm::Base::kLeftChild, RankTerm::Base::kRightChild}) {
      const RankTerm child{.base = base, .tree = tree};
      const Ref received = half(Space::kScratch, tree + 1, static_cast<int>(plan.scratch.size()));
      plan.scratch.push_back({.name = fmt::format("child{}", plan.scratch.size()), .depth = 1});
      body.push_back(receive(child, received));
      body.push_back(next_to(child, add(sum, received)));
    }
    body.push_back(send(parent, sum));
  }
  for (uint8_t tree : {0, 1}) {
    const Ref sum = half(Space::kOutput, tree + 1);
    body.push_back(lagging(in_flight, receive({.base = RankTerm::Base::kParent, .tree = tree}, sum)));
    for (const auto base : {RankTerm::Base::kLeftChild, RankTerm::Base::kRightChild}) {
      body.push_back(lagging(in_flight, send({.base = base, .tree = tree}, sum)));
    }
  }
  return plan;
}

}  // namespace collective_ops
