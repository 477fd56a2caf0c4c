// For small vectors: everyone publishes its vector with its arrival and reduces all n of them itself.
// One synchronisation, (n^2 + 3n)S bytes.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_one_shot() {
  Plan plan{.name = "one_shot", .collective = Collective::kAllReduce, .eager = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent}};
  plan.loops = {once({
      copy(whole(Space::kScratch), whole(Space::kInput)),
      arrive(),
      await_others(),
      reduce({whole(Space::kOutput)}, {own_from_input(whole(Space::kScratch, kEachRank))}),
  })};
  return plan;
}

}  // namespace collective_ops
