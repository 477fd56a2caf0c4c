// For buffers that lie in shared memory: each rank reduces its slice from all inputs into the root's output.
// (n + 1)S bytes, the least there is, and the ranks share the work. The last wait is needed: until then peers
// read my input, and write the root's output.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kReduce,
            .reads_peer_input = true,
            .writes_peer_output = true,
            .writes_only_root_output = true,
            .output_at_root = true};
  plan.loops = {once({
      arrive(),
      await_others(),
      reduce({block(Space::kOutput, kTheRoot, kMyself)}, {block(Space::kInput, kEachRank, kMyself)}),
      signal(),
      wait_others(),
  })};
  return plan;
}

}  // namespace collective_ops
