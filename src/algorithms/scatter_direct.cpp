// For a root's input that lies in shared memory: each copies its block from there. 2S bytes (S: all n
// blocks), the least there is. The root leaves when all others have read theirs.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan scatter_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .reads_peer_input = true,
            .reads_only_root_input = true,
            .input_at_root = true};
  plan.loops = {once({
      arrive(),
      await_root(),
      copy(whole(Space::kOutput), block(Space::kInput, kTheRoot, kMyself)),
      on_others(signal()),
      on_root(wait_others()),
  })};
  return plan;
}

}  // namespace collective_ops
