// For inputs that lie in shared memory: everyone reduces its block from where they are. (n + 1)S bytes (S:
// all n blocks), the least there is. The last wait is needed: until then peers read my input.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .reads_peer_input = true};
  plan.loops = {once({
      arrive(),
      await_others(),
      reduce({whole(Space::kOutput)}, {block(Space::kInput, kEachRank, kMyself)}),
      signal(),
      wait_others(),
  })};
  return plan;
}

}  // namespace collective_ops
