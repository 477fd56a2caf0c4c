// For private buffers: chunks pass through scratch that stays in the cache. (5n - 2)S bytes:
// a rank stages nothing of its own slice but the result.
// In iteration i each rank copies chunk i of every slice in, reduces chunk i-1 of its own slice, and copies
// chunk i-2 of every slice out, so one synchronisation per chunk serves all three. Within an iteration ranks
// write slot i mod 2 of `in` and read the other one, and write slot (i-1) mod 2 of `result` and read the
// other one: a depth of 2 is enough. After the last iteration nobody waits: scratch is next touched when all
// have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_two_shot() {
  Plan plan{.name = "two_shot", .collective = Collective::kAllReduce};
  const int in = 0, result = 1;
  plan.scratch = {{.name = "in", .per_rank = true, .depth = 2}, {.name = "result", .depth = 2}};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({
          lagging(1, wait_others()),
          copy(block(Space::kScratch, kMyself, kEachRank, in), block(Space::kInput, kMyself, kEachRank),
               Each::kOthers),
          lagging(1, reduce({block(Space::kScratch, kMyself, kMyself, result),
                             block(Space::kOutput, kMyself, kMyself)},
                            {own_from_input(block(Space::kScratch, kEachRank, kMyself, in))})),
          lagging(2, copy(block(Space::kOutput, kMyself, kEachRank),
                          block(Space::kScratch, kEachRank, kEachRank, result), Each::kOthers)),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
