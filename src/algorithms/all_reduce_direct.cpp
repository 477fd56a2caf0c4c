// For buffers that lie in shared memory: each rank reduces its slice from all inputs into all outputs.
// 2nS bytes, the least there is. The last wait is needed: until then peers read my input and write my output.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kAllReduce,
            .reads_peer_input = true,
            .writes_peer_output = true};
  plan.loops = {once({
      arrive(),
      await_others(),
      reduce({block(Space::kOutput, kEachRank, kMyself)}, {block(Space::kInput, kEachRank, kMyself)}),
      signal(),
      wait_others(),
  })};
  return plan;
}

}  // namespace collective_ops
