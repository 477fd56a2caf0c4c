// For buffers that all lie in shared memory: every rank, the root too, copies its slice of the root's buffer into
// all buffers, chunk by chunk, so that a chunk is read from memory once. 2nS bytes, shared by n ranks.
// The caller's buffer is input and output in one, so what goes to the root itself is no copy. The last
// wait is needed: until then peers read my buffer or write into it.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan broadcast_push() {
  Plan plan{.name = "push",
            .collective = Collective::kBroadcast,
            .reads_peer_input = true,
            .reads_only_root_input = true,
            .writes_peer_output = true};
  plan.loops = {
      once({arrive(), await_others()}),
      chunks({copy(block(Space::kOutput, kEachRank, kMyself), block(Space::kInput, kTheRoot, kMyself),
                   Each::kAll)}),
      once({signal(), wait_others()}),
  };
  return plan;
}

}  // namespace collective_ops
