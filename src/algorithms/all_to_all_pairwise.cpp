// Between hosts: in step s everyone sends to the rank s+1 above and receives from the one s+1 below. (n-1)/n
// S sent by each rank (S: all n blocks of one rank), the least there is, in n-1 messages.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_to_all_pairwise() {
  Plan plan{.name = "pairwise",
            .collective = Collective::kAllToAll,
            .input = Layout::kByDestination,
            .output = Layout::kBySource};
  const Statement own = copy(block(Space::kOutput, kMyself, kMyself), block(Space::kInput, kMyself, kMyself));
  const RankTerm above{.base = RankTerm::Base::kMe, .offset = 1, .step_factor = 1};
  const RankTerm below{.base = RankTerm::Base::kMe, .offset = -1, .step_factor = -1};
  plan.loops = {
      once({arrive(), await_others(), own}),
      ring_steps({
          send(above, block(Space::kInput, kMyself, above)),
          receive(below, block(Space::kOutput, kMyself, below)),
      }),
  };
  return plan;
}

}  // namespace collective_ops
