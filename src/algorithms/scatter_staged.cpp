// For private buffers: chunks pass through the root's scratch, which stays in the cache. (4n - 2)/n S bytes
// (S: all n blocks). The root is at most 2 chunks ahead: it writes chunk i when all have read chunk i-2. The
// others follow chunk by chunk and never wait for each other, nor the root for the last chunks: scratch is
// next touched when all have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan scatter_staged() {
  Plan plan{.name = "staged",
            .collective = Collective::kScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .input_at_root = true};
  const int depth = 2;
  plan.scratch = {{.name = "input", .per_rank = true, .depth = depth}};
  plan.loops = {
      once({
          arrive(),
          on_root(await_others()),
          on_root(copy(whole(Space::kOutput), block(Space::kInput, kMyself, kMyself))),
      }),
      chunks({
          on_root(lagging(depth, wait_others())),
          on_root(copy(block(Space::kScratch, kMyself, kEachRank), block(Space::kInput, kMyself, kEachRank),
                       Each::kOthers)),
          on_root(signal()),
          wait_root(),
          on_others(copy(whole(Space::kOutput), block(Space::kScratch, kTheRoot, kMyself))),
          on_others(signal()),
      }),
  };
  return plan;
}

}  // namespace collective_ops
