// Between hosts, for short vectors: partial sums go up a binomial tree to rank 0, the result comes down.
// 2 ceil(log2 n) messages one after the other, each of the whole vector.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_tree() {
  Plan plan{.name = "tree", .collective = Collective::kAllReduce, .rank_ordered = false};
  plan.scratch = {{.name = "received", .piece = ScratchRegion::Piece::kExtent}};
  const RankTerm partner{.base = RankTerm::Base::kZero, .xor_step = true};
  plan.loops = {
      once({arrive(), await_others(), copy(whole(Space::kOutput), whole(Space::kInput))}),
      tree_steps(false,
                 {
                     of_child(partner, send(partner, whole(Space::kOutput))),
                     of_parent(partner, receive(partner, whole(Space::kScratch))),
                     of_parent(partner, reduce({whole(Space::kOutput)},
                                               {whole(Space::kOutput), whole(Space::kScratch)})),
                 }),
      tree_steps(true,
                 {
                     of_parent(partner, send(partner, whole(Space::kOutput))),
                     of_child(partner, receive(partner, whole(Space::kOutput))),
                 }),
  };
  return plan;
}

}  // namespace collective_ops
