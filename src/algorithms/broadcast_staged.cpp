// For private buffers: chunks pass through the root's scratch, which stays in the cache. 2nS bytes.
// The root is at most 4 chunks ahead: it writes chunk i when all have read chunk i-4. The others follow chunk
// by chunk and never wait for each other. The caller's buffer is input and output in one, so the root has its
// result already; it need not wait for the last chunks to be read, since scratch is next touched when all
// have arrived at another call.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_staged() {
  Plan plan{
      .name = "staged", .collective = Collective::kBroadcast, .input = Layout::kOwn, .output = Layout::kOwn};
  const int depth = 4;
  plan.scratch = {{.name = "input", .depth = depth}};
  plan.loops = {
      once({arrive(), on_root(await_others())}),
      chunks({
          on_root(lagging(depth, wait_others())),
          on_root(copy(whole(Space::kScratch), whole(Space::kInput))),
          on_root(signal()),
          wait_root(),
          on_others(copy(whole(Space::kOutput), whole(Space::kScratch, kTheRoot))),
          on_others(signal()),
      }),
  };
  return plan;
}

}  // namespace collective_ops
