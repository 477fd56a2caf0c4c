// Between hosts: recursive doubling, with each step a rank has twice as many blocks. (n-1)/n S sent by each
// rank (S: all n blocks) in log2 n messages one after the other; where n is no power of two, the ranks beyond
// one take part by a partner below, with 2 messages and S more.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_gather_halving_doubling() {
  Plan plan{.name = "halving_doubling",
            .collective = Collective::kAllGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated};
  const Statement own = copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput));
  plan.loops = {
      once({arrive(), await_others(), own}),
      fold({
          of_upper(send(kPartner, block(Space::kOutput, kMyself, kMyself))),
          of_lower(receive(kPartner, block(Space::kOutput, kMyself, kPartner))),
      }),
      doubling(),
      fold({
          of_lower(send(kPartner, whole(Space::kOutput))),
          of_upper(receive(kPartner, whole(Space::kOutput))),
      }),
  };
  return plan;
}

}  // namespace collective_ops
