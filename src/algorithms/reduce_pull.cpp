// For inputs that lie in shared memory, and for private ones that the kernel lets peers read: the root reduces all
// from where they are, alone. (n + 1)S bytes. The others wait until the root has read their inputs, not for each
// other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_pull() {
  Plan plan{
      .name = "pull", .collective = Collective::kReduce, .reads_peer_input = true, .output_at_root = true};
  plan.loops = {once({
      arrive(),
      on_root(await_others()),
      on_root(reduce({whole(Space::kOutput)}, {whole(Space::kInput, kEachRank)})),
      on_root(signal()),
      wait_root(),
  })};
  return plan;
}

}  // namespace collective_ops
