// For small blocks: everyone publishes its block with its arrival and copies all n.
// One synchronisation, 2S + 2nS bytes (S: all n blocks).
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .eager = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent}};
  plan.loops = {once({
      copy(block(Space::kScratch, kMyself, kMyself), whole(Space::kInput)),
      arrive(),
      copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput)),
      await_others(),
      copy(block(Space::kOutput, kMyself, kEachRank), block(Space::kScratch, kEachRank, kEachRank),
           Each::kOthers),
  })};
  return plan;
}

}  // namespace collective_ops
