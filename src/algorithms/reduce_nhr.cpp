// Between hosts, for long vectors: a reduce-scatter whose partners are 2^step ranks away, then each rank
// sends its slice to the root. 2(n-1)/n S sent by each rank at most.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_nhr() {
  Plan plan{.name = "nhr", .collective = Collective::kReduce, .output_at_root = true, .rank_ordered = false};
  const int sums = 0, received = 1;
  plan.scratch = {{.name = "sums", .piece = ScratchRegion::Piece::kExtent, .per_rank = true},
                  {.name = "received", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  const Ref mine = block(Space::kScratch, kMyself, kMyself, sums);
  plan.loops = {
      once({arrive(), await_others(), copy(whole(Space::kScratch, kMyself, sums), whole(Space::kInput))}),
      hierarchical_reduce_scatter(Space::kScratch, sums, received),
      once({
          on_others(send(kTheRoot, mine)),
          on_root(copy(block(Space::kOutput, kMyself, kMyself), mine)),
          on_root(repeated(Each::kOthers, receive(kEachRank, block(Space::kOutput, kMyself, kEachRank)))),
      }),
  };
  return plan;
}

}  // namespace collective_ops
