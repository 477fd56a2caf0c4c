// For large private buffers whose owners let their peers read them (process_vm_readv): each rank reads and
// reduces its slice of every input, then reads the other slices of the result from their owners. Two
// synchronisations for any size, where staging needs one per chunk. (3n - 1)S bytes, and what the kernel
// copies. A rank overwrites others' slices of its own buffer only once their owners have signalled that they
// read them.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_read() {
  Plan plan{.name = "read",
            .collective = Collective::kAllReduce,
            .reads_peer_input = true,
            .reads_peer_output = true};
  plan.loops = {
      once({
          arrive(),
          await_others(),
          reduce({block(Space::kOutput, kMyself, kMyself)}, {block(Space::kInput, kEachRank, kMyself)}),
          signal(),
          wait_others(),
      }),
      once({
          copy(block(Space::kOutput, kMyself, kEachRank), block(Space::kOutput, kEachRank, kEachRank),
               Each::kOthers),
          signal(),
          wait_others(),
      })};
  return plan;
}

}  // namespace collective_ops
