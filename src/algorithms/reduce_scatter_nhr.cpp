// Between hosts, for any n: partners are 2^step ranks away (nonuniform hierarchical ring). (n-1)/n S sent by
// each rank (S: all n blocks) in ceil(log2 n) messages one after the other. The order of the sum differs from
// block to block.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_nhr() {
  Plan plan{.name = "nhr",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .rank_ordered = false};
  const int sums = 0, received = 1;
  plan.scratch = {{.name = "sums", .piece = ScratchRegion::Piece::kExtent, .per_rank = true},
                  {.name = "received", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  plan.loops = {
      once({arrive(), await_others(), copy(whole(Space::kScratch, kMyself, sums), whole(Space::kInput))}),
      hierarchical_reduce_scatter(Space::kScratch, sums, received),
      once({copy(whole(Space::kOutput), block(Space::kScratch, kMyself, kMyself, sums))}),
  };
  return plan;
}

}  // namespace collective_ops
