// For a root's output that lies in shared memory: everyone copies its input there, so all cores share the work. 2S
// bytes (S: all n blocks), the least there is. Nobody waits but for the root, and the root for all.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_push() {
  Plan plan{.name = "push",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .writes_peer_output = true,
            .writes_only_root_output = true,
            .output_at_root = true};
  plan.loops = {once({
      arrive(),
      await_root(),
      copy(block(Space::kOutput, kTheRoot, kMyself), whole(Space::kInput)),
      on_others(signal()),
      on_root(wait_others()),
  })};
  return plan;
}

}  // namespace collective_ops
