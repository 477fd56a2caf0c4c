// For private buffers: chunks pass through scratch that stays in the cache. (6n - 4)S bytes. The sum of a chunk
// goes back in the piece of scratch in which an input came: so a cache line changes hands twice per call, where a
// piece of its own for results needs four times, and with two ranks that is what bounds the speed.
// In iteration i each rank copies chunk i-2 of every other slice out of its scratch, copies chunk i in, and adds up
// chunk i-1 of its own slice in its peers' pieces, so one synchronisation per chunk serves all three. Pieces
// i mod 2 are the owner's, and the others are those of who adds up: a depth of 2 is enough. After the last
// iteration nobody waits: scratch is next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_two_shot() {
  Plan plan{.name = "two_shot", .collective = Collective::kAllReduce};
  plan.scratch = {{.name = "sums", .per_rank = true, .depth = 2}};
  const Ref mine = block(Space::kScratch, kMyself, kEachRank);
  const Ref theirs = block(Space::kScratch, kEachRank, kMyself);
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({
          lagging(1, wait_others()),
          lagging(2, copy(block(Space::kOutput, kMyself, kEachRank), mine, Each::kOthers)),
          copy(mine, block(Space::kInput, kMyself, kEachRank), Each::kOthers),
          lagging(1, reduce({own_to_output(theirs)}, {own_from_input(theirs)})),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
