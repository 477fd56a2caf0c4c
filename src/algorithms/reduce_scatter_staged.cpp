// For private buffers: chunks pass through scratch that stays in the cache. (3n - 1)S bytes (S: all n
// blocks). In iteration i each rank copies chunk i of every block in and reduces chunk i-1 of its own: it
// writes slot i mod 2 while its peers read the other one. After the last iteration nobody waits: scratch is
// next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_staged() {
  Plan plan{.name = "staged",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn};
  plan.scratch = {{.name = "in", .per_rank = true, .depth = 2}};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({
          lagging(1, wait_others()),
          copy(block(Space::kScratch, kMyself, kEachRank), block(Space::kInput, kMyself, kEachRank),
               Each::kOthers),
          lagging(1, reduce({whole(Space::kOutput)},
                            {own_from_input(block(Space::kScratch, kEachRank, kMyself))})),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
