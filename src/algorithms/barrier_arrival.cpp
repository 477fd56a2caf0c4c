// Nobody leaves before all have come. Arrival alone says so.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan barrier_arrival() {
  Plan plan{
      .name = "arrival", .collective = Collective::kBarrier, .input = Layout::kNone, .output = Layout::kNone};
  plan.loops = {once({arrive(), await_others()})};
  return plan;
}

}  // namespace collective_ops
