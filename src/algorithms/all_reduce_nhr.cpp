// Between hosts, for any n: a reduce-scatter and an all-gather whose partners are 2^step ranks away
// (nonuniform hierarchical ring). 2(n-1)/n S sent by each rank in 2 ceil(log2 n) messages one after the
// other. The order of the sum differs from block to block.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_nhr() {
  Plan plan{.name = "nhr", .collective = Collective::kAllReduce, .rank_ordered = false};
  plan.scratch = {{.name = "received", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  plan.loops = {
      once({arrive(), await_others(), copy(whole(Space::kOutput), whole(Space::kInput))}),
      hierarchical_reduce_scatter(Space::kOutput, 0, 0),
      hierarchical_all_gather(),
  };
  return plan;
}

}  // namespace collective_ops
