// For private buffers: chunks pass through scratch that stays in the cache. (4n - 2)S bytes (S: all n blocks
// of one rank). In iteration i each rank copies chunk i of its blocks in and chunk i-1 of those for it out:
// it writes slot i mod 2 while its peers read the other one. After the last iteration nobody waits: scratch
// is next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_to_all_staged() {
  Plan plan{.name = "staged",
            .collective = Collective::kAllToAll,
            .input = Layout::kByDestination,
            .output = Layout::kBySource};
  plan.scratch = {{.name = "input", .per_rank = true, .depth = 2}};
  plan.loops = {
      once({
          arrive(),
          await_others(),
          copy(block(Space::kOutput, kMyself, kMyself), block(Space::kInput, kMyself, kMyself)),
      }),
      chunks({
          lagging(1, wait_others()),
          copy(block(Space::kScratch, kMyself, kEachRank), block(Space::kInput, kMyself, kEachRank),
               Each::kOthers),
          lagging(1, copy(block(Space::kOutput, kMyself, kEachRank),
                          block(Space::kScratch, kEachRank, kMyself), Each::kOthers)),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
