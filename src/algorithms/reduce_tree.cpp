// Between hosts, for short vectors: partial sums go up a binomial tree to the root. ceil(log2 n) messages one
// after the other, each of the whole vector.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_tree() {
  Plan plan{.name = "tree", .collective = Collective::kReduce, .output_at_root = true, .rank_ordered = false};
  plan.scratch = {{.name = "sum", .piece = ScratchRegion::Piece::kExtent},
                  {.name = "received", .piece = ScratchRegion::Piece::kExtent}};
  const Ref sum = whole(Space::kScratch, kMyself, 0), received = whole(Space::kScratch, kMyself, 1);
  plan.loops = {
      once({arrive(), await_others(), copy(sum, whole(Space::kInput))}),
      tree_steps(false,
                 {
                     of_child(kPartnerOfRoot, send(kPartnerOfRoot, sum)),
                     of_parent(kPartnerOfRoot, receive(kPartnerOfRoot, received)),
                     of_parent(kPartnerOfRoot, add(sum, received)),
                 }),
      once({on_root(copy(whole(Space::kOutput), sum))}),
  };
  return plan;
}

}  // namespace collective_ops
