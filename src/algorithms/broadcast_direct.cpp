// For a root's buffer that lies in shared memory: the others copy from it. 2(n-1)S bytes.
// The caller's buffer is input and output in one, so the root has its result already; it leaves when all
// others have read it.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_direct() {
  Plan plan{.name = "direct",
            .collective = Collective::kBroadcast,
            .input = Layout::kOwn,
            .output = Layout::kOwn,
            .reads_peer_input = true,
            .reads_only_root_input = true};
  plan.loops = {once({
      arrive(),
      await_root(),
      on_others(copy(whole(Space::kOutput), whole(Space::kInput, kTheRoot))),
      on_others(signal()),
      on_root(wait_others()),
  })};
  return plan;
}

}  // namespace collective_ops
