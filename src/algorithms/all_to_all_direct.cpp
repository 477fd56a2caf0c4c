// For inputs that lie in shared memory: everyone copies what is for it from where it is. 2nS bytes (S: all n
// blocks of one rank), the least there is. The last wait is needed: until then peers read my input.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_to_all_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kAllToAll,
            .input = Layout::kByDestination,
            .output = Layout::kBySource,
            .reads_peer_input = true};
  plan.loops = {once({
      arrive(),
      copy(block(Space::kOutput, kMyself, kMyself), block(Space::kInput, kMyself, kMyself)),
      await_others(),
      copy(block(Space::kOutput, kMyself, kEachRank), block(Space::kInput, kEachRank, kMyself),
           Each::kOthers),
      signal(),
      wait_others(),
  })};
  return plan;
}

}  // namespace collective_ops
