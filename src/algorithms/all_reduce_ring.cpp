// Between hosts, for long vectors: a ring of partial sums (block b starts at rank b+1 and ends, complete, at
// rank b), then a ring that hands the results round. 2(n-1)/n S sent by each rank, in 2(n-1) messages.
// The order of the sum differs from block to block.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_ring() {
  Plan plan{.name = "ring", .collective = Collective::kAllReduce, .rank_ordered = false};
  plan.scratch = {{.name = "partial", .piece = ScratchRegion::Piece::kExtent}};
  const RankTerm sent{.base = RankTerm::Base::kMe, .offset = -1, .step_factor = -1};
  const RankTerm received{.base = RankTerm::Base::kMe, .offset = -2, .step_factor = -1};
  const RankTerm passed_on{.base = RankTerm::Base::kMe, .step_factor = -1};
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
      once({copy(block(Space::kOutput, kMyself, kMyself), block(Space::kScratch, kMyself, kMyself))}),
      ring_steps({
          send(kNextRank, block(Space::kOutput, kMyself, passed_on)),
          receive(kPreviousRank, block(Space::kOutput, kMyself, sent)),
      }),
  };
  return plan;
}

}  // namespace collective_ops
