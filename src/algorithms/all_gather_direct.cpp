// For inputs that lie in shared memory: everyone copies all blocks from where they are. 2nS bytes (S: all n
// blocks). The last wait is needed: until then peers read my input.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .reads_peer_input = true};
  plan.loops = {once({
      arrive(),
      copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput)),
      await_others(),
      copy(block(Space::kOutput, kMyself, kEachRank), whole(Space::kInput, kEachRank), Each::kOthers),
      signal(),
      wait_others(),
  })};
  return plan;
}

}  // namespace collective_ops
