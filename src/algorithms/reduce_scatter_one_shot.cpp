// For small vectors: everyone publishes all its blocks with its arrival and reduces its own.
// One synchronisation, (3n + 1)S bytes (S: all n blocks).
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .eager = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  plan.loops = {once({
      copy(whole(Space::kScratch), whole(Space::kInput)),
      arrive(),
      await_others(),
      reduce({whole(Space::kOutput)}, {own_from_input(block(Space::kScratch, kEachRank, kMyself))}),
  })};
  return plan;
}

}  // namespace collective_ops
