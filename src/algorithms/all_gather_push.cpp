// For outputs that all lie in shared memory: everyone copies its input into all outputs, chunk by chunk, so that a
// chunk is read from memory once. 2nS bytes (S: all n blocks). The last wait is needed: until then peers write
// my output.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_push() {
  Plan plan{.name = "push",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .writes_peer_output = true};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({copy(block(Space::kOutput, kEachRank, kMyself), whole(Space::kInput), Each::kAll)}),
      once({signal(), wait_others()}),
  };
  return plan;
}

}  // namespace collective_ops
