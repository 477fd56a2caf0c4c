// Between hosts (Rabenseifner): recursive halving spreads the sums over the ranks, recursive doubling hands
// them round. 2 (1 - 1/n) S sent by each rank in 2 log2 n messages one after the other. Where n is no power
// of two, the ranks beyond one take part by a partner below, with 2 messages and 2 S more; the slices are
// then unequally spread, so `nhr` is better.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_halving_doubling() {
  Plan plan{.name = "halving_doubling", .collective = Collective::kAllReduce, .rank_ordered = false};
  plan.scratch = {{.name = "received", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  const Ref sum = whole(Space::kOutput), received = whole(Space::kScratch);
  plan.loops = {
      once({arrive(), await_others(), copy(sum, whole(Space::kInput))}),
      fold({
          of_upper(send(kPartner, sum)),
          of_lower(receive(kPartner, received)),
          of_lower(add(sum, received)),
      }),
      halving(Space::kOutput, 0, 0),
      doubling(),
      fold({of_lower(send(kPartner, sum)), of_upper(receive(kPartner, sum))}),
  };
  return plan;
}

}  // namespace collective_ops
