// Between hosts: the root sends to each rank its block. (n-1)/n S in all (S: all n blocks), the least there
// is.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan scatter_linear() {
  Plan plan{.name = "linear",
            .collective = Collective::kScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .input_at_root = true};
  plan.loops = {once({
      arrive(),
      await_others(),
      on_root(repeated(Each::kOthers, send(kEachRank, block(Space::kInput, kMyself, kEachRank)))),
      on_root(copy(whole(Space::kOutput), block(Space::kInput, kMyself, kMyself))),
      on_others(receive(kTheRoot, whole(Space::kOutput))),
  })};
  return plan;
}

}  // namespace collective_ops
