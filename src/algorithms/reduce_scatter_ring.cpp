// Between hosts: a ring of partial sums; block b starts at rank b+1 and ends, complete, at rank b.
// (n-1)/n S sent by each rank (S: all n blocks), in n-1 messages. The order of the sum differs from block to
// block.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_ring() {
  Plan plan{.name = "ring",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .rank_ordered = false};
  plan.scratch = {{.name = "partial", .piece = ScratchRegion::Piece::kExtent}};
  const RankTerm sent{.base = RankTerm::Base::kMe, .offset = -1, .step_factor = -1};
  const RankTerm received{.base = RankTerm::Base::kMe, .offset = -2, .step_factor = -1};
  plan.loops = {
      once({
          arrive(),
          await_others(),
          copy(block(Space::kScratch, kMyself, kPreviousRank), block(Space::kInput, kMyself, kPreviousRank)),
      }),
      ring_steps({
          send(kNextRank, block(Space::kScratch, kMyself, sent)),
          receive(kPreviousRank, block(Space::kScratch, kMyself, received)),
          reduce({block(Space::kScratch, kMyself, received)},
                 {block(Space::kScratch, kMyself, received), block(Space::kInput, kMyself, received)}),
      }),
      once({copy(whole(Space::kOutput), block(Space::kScratch, kMyself, kMyself))}),
  };
  return plan;
}

}  // namespace collective_ops
