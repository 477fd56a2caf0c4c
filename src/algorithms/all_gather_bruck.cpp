// Between hosts, for any n (Bruck): partners are 2^step ranks away, the nearest first, so that the long
// messages go to the far ones. Bytes and messages as of `nhr`; blocks lie together in memory, from its own
// on.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_bruck() {
  Plan plan{.name = "bruck",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated};
  const Statement own = copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput));
  const RankTerm sent{.base = RankTerm::Base::kMe, .power = -1, .distance = 1};
  plan.loops = {
      once({arrive(), await_others(), own}),
      tree_steps(
          false,
          {
              repeated(Each::kHighestBit, send(kPowerDown, block(Space::kOutput, kMyself, sent))),
              repeated(Each::kHighestBit, receive(kPowerUp, block(Space::kOutput, kMyself, kDistanceUp))),
          }),
  };
  return plan;
}

}  // namespace collective_ops
