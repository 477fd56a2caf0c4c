// Between hosts, for any n: partners are 2^step ranks away, the farthest first (nonuniform hierarchical
// ring). (n-1)/n S sent by each rank (S: all n blocks) in ceil(log2 n) messages one after the other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_nhr() {
  Plan plan{.name = "nhr",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated};
  const Statement own = copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput));
  plan.loops = {once({arrive(), await_others(), own}), hierarchical_all_gather()};
  return plan;
}

}  // namespace collective_ops
