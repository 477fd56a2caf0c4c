// Between hosts: a binomial tree of messages, ceil(log2 n) of them one after the other.
// The caller's buffer is input and output in one, so the root sends from its output.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_tree() {
  Plan plan{
      .name = "tree", .collective = Collective::kBroadcast, .input = Layout::kOwn, .output = Layout::kOwn};
  const RankTerm partner{.base = RankTerm::Base::kRoot, .xor_step = true};
  plan.loops = {
      once({arrive(), await_others()}),
      tree_steps(true,
                 {
                     of_parent(partner, send(partner, whole(Space::kOutput))),
                     of_child(partner, receive(partner, whole(Space::kOutput))),
                 }),
  };
  return plan;
}

}  // namespace collective_ops
