// Between hosts, for long vectors: the slices go down a binomial tree, each rank's own, then an all-gather
// hands them round. 2(n-1)/n S sent by the root, as much by the ranks below it at most, in 2 ceil(log2 n)
// messages one after the other. The caller's buffer is input and output in one, so the root sends from its
// output.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_nhr() {
  Plan plan{.name = "nhr", .collective = Collective::kBroadcast};
  const RankTerm below{.base = RankTerm::Base::kMe, .power = 1, .distance = 1};
  plan.loops = {
      once({arrive(), await_others()}),
      tree_steps(true,
                 {
                     of_parent(kPartnerOfRoot,
                               repeated(Each::kSubtree,
                                        send(kPartnerOfRoot, block(Space::kOutput, kMyself, below)))),
                     of_child(kPartnerOfRoot,
                              repeated(Each::kSubtree,
                                       receive(kPartnerOfRoot, block(Space::kOutput, kMyself, kDistanceUp)))),
                 }),
      hierarchical_all_gather(),
  };
  return plan;
}

}  // namespace collective_ops
