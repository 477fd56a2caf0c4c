// For private buffers: chunks pass through scratch that stays in the cache. (3n + 3)S bytes. As in an
// all-reduce each rank copies chunk i of every slice in and reduces chunk i-1 of its own slice, so that the
// ranks share the work; the root alone copies chunk i-2 of every slice out. After the last iteration nobody
// waits: scratch is next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_staged() {
  Plan plan{.name = "staged", .collective = Collective::kReduce, .output_at_root = true};
  const int in = 0, result = 1;
  plan.scratch = {{.name = "in", .per_rank = true, .depth = 2}, {.name = "result", .depth = 2}};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({
          lagging(1, wait_others()),
          copy(block(Space::kScratch, kMyself, kEachRank, in), block(Space::kInput, kMyself, kEachRank),
               Each::kAll),
          lagging(1, reduce({block(Space::kScratch, kMyself, kMyself, result)},
                            {block(Space::kScratch, kEachRank, kMyself, in)})),
          on_root(lagging(2, copy(block(Space::kOutput, kMyself, kEachRank),
                                  block(Space::kScratch, kEachRank, kEachRank, result), Each::kAll))),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
