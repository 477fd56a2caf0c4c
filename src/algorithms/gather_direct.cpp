// For inputs that lie in shared memory: the root copies all blocks from where they are. 2S bytes (S: all n
// blocks), the least there is. The others wait until the root has read their inputs, not for each other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .reads_peer_input = true,
            .output_at_root = true};
  plan.loops = {once({
      arrive(),
      on_root(copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput))),
      on_root(await_others()),
      on_root(
          copy(block(Space::kOutput, kMyself, kEachRank), whole(Space::kInput, kEachRank), Each::kOthers)),
      on_root(signal()),
      wait_root(),
  })};
  return plan;
}

}  // namespace collective_ops
