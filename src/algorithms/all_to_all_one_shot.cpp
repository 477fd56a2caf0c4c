// For small blocks: everyone publishes all its blocks with its arrival and copies what is for it. One
// synchronisation, 4nS bytes (S: all n blocks of one rank).
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_to_all_one_shot() {
  Plan plan{.name = "one_shot",
            .collective = Collective::kAllToAll,
            .input = Layout::kByDestination,
            .output = Layout::kBySource,
            .eager = true};
  plan.scratch = {{.name = "input", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  plan.loops = {once({
      copy(whole(Space::kScratch), whole(Space::kInput)),
      arrive(),
      await_others(),
      copy(block(Space::kOutput, kMyself, kEachRank),
           own_from_input(block(Space::kScratch, kEachRank, kMyself)), Each::kAll),
  })};
  return plan;
}

}  // namespace collective_ops
