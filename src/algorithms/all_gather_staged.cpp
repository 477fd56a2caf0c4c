// For private buffers: chunks pass through scratch that stays in the cache. 2S + 2nS bytes (S: all n blocks).
// In iteration i each rank copies chunk i of its block in and chunk i-1 of the peers' blocks out: it writes
// slot i mod 2 while its peers read the other one. After the last iteration nobody waits: scratch is next
// touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_staged() {
  Plan plan{.name = "staged",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated};
  plan.scratch = {{.name = "input", .depth = 2}};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({
          lagging(1, wait_others()),
          copy(block(Space::kScratch, kMyself, kMyself), whole(Space::kInput)),
          copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput)),
          lagging(1, copy(block(Space::kOutput, kMyself, kEachRank),
                          block(Space::kScratch, kEachRank, kEachRank), Each::kOthers)),
          signal(),
      }),
  };
  return plan;
}

}  // namespace collective_ops
