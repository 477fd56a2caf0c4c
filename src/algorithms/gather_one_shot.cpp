// For small blocks: everyone publishes its block with its arrival; the root copies them, and nobody waits but
// the root. (4n - 2)/n S bytes (S: all n blocks).
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .eager = true,
            .output_at_root = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent}};
  plan.loops = {once({
      on_others(copy(block(Space::kScratch, kMyself, kMyself), whole(Space::kInput))),
      arrive(),
      on_root(copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput))),
      on_root(await_others()),
      on_root(copy(block(Space::kOutput, kMyself, kEachRank), block(Space::kScratch, kEachRank, kEachRank),
                   Each::kOthers)),
  })};
  return plan;
}

}  // namespace collective_ops
