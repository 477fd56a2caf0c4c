// For small vectors: the others publish their vectors with their arrival; the root reduces them, and nobody
// waits but the root. (3n - 1)S bytes.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_one_shot() {
  Plan plan{.name = "one_shot", .collective = Collective::kReduce, .eager = true, .output_at_root = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent}};
  plan.loops = {once({
      on_others(copy(whole(Space::kScratch), whole(Space::kInput))),
      arrive(),
      on_root(await_others()),
      on_root(reduce({whole(Space::kOutput)}, {own_from_input(whole(Space::kScratch, kEachRank))})),
  })};
  return plan;
}

}  // namespace collective_ops
