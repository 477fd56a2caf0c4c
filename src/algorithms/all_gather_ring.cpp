// Between hosts: blocks travel round a ring. (n-1)/n S sent by each rank (S: all n blocks), in n-1 messages.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_ring() {
  Plan plan{.name = "ring",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated};
  const RankTerm sent{.base = RankTerm::Base::kMe, .step_factor = -1};
  const RankTerm received{.base = RankTerm::Base::kMe, .offset = -1, .step_factor = -1};
  plan.loops = {
      once({
          arrive(),
          await_others(),
          copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput)),
      }),
      ring_steps({
          send(kNextRank, block(Space::kOutput, kMyself, sent)),
          receive(kPreviousRank, block(Space::kOutput, kMyself, received)),
      }),
  };
  return plan;
}

}  // namespace collective_ops
