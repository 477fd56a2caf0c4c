// For private buffers: chunks pass through the others' scratch, which stays in the cache. (4n - 2)/n S bytes
// (S: all n blocks). Each is at most 4 chunks ahead of the root and never waits for the others. Nobody waits
// for the last chunks to be read: scratch is next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_staged() {
  Plan plan{.name = "staged",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .output_at_root = true};
  const int depth = 4;
  plan.scratch = {{.name = "input", .depth = depth}};
  plan.loops = {
      once({
          arrive(),
          await_others(),
          on_root(copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput))),
      }),
      chunks({
          lagging(depth, wait_root()),
          on_others(copy(block(Space::kScratch, kMyself, kMyself), whole(Space::kInput))),
          on_others(signal()),
          on_root(wait_others()),
          on_root(copy(block(Space::kOutput, kMyself, kEachRank),
                       block(Space::kScratch, kEachRank, kEachRank), Each::kOthers)),
          on_root(signal()),
      }),
  };
  return plan;
}

}  // namespace collective_ops
