// Between hosts: everyone sends its block to the root. (n-1)/n S in all (S: all n blocks), the least there
// is, in n-1 messages that the root receives one after the other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_linear() {
  Plan plan{.name = "linear",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .output_at_root = true};
  plan.loops = {once({
      arrive(),
      await_others(),
      on_others(send(kTheRoot, whole(Space::kInput))),
      on_root(copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput))),
      on_root(repeated(Each::kOthers, receive(kEachRank, block(Space::kOutput, kMyself, kEachRank)))),
  })};
  return plan;
}

}  // namespace collective_ops
