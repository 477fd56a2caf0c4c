// For small blocks: the root publishes all blocks with its arrival and waits for nobody; each copies its own.
// 4S bytes (S: all n blocks).
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan scatter_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .eager = true,
            .input_at_root = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  plan.loops = {once({
      on_root(copy(whole(Space::kScratch), whole(Space::kInput))),
      arrive(),
      await_root(),
      copy(whole(Space::kOutput), own_from_input(block(Space::kScratch, kTheRoot, kMyself))),
  })};
  return plan;
}

}  // namespace collective_ops
