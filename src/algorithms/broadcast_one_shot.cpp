// For small vectors: the root publishes its vector with its arrival and waits for nobody.
// The caller's buffer is input and output in one, so the root has its result already. (2 + 2(n-1))S bytes.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kBroadcast,
            .input = Layout::kOwn,
            .output = Layout::kOwn,
            .eager = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent}};
  plan.loops = {once({
      on_root(copy(whole(Space::kScratch), whole(Space::kInput))),
      arrive(),
      await_root(),
      on_others(copy(whole(Space::kOutput), whole(Space::kScratch, kTheRoot))),
  })};
  return plan;
}

}  // namespace collective_ops
