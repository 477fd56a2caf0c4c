// Between hosts, for short vectors: in step s ranks whose numbers differ in bit s exchange their sums. log2 n
// messages of the whole vector one after the other; where n is no power of two, two more: the ranks beyond
// one take part by a partner below.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_reduce_recursive_doubling() {
  Plan plan{.name = "recursive_doubling", .collective = Collective::kAllReduce, .rank_ordered = false};
  plan.scratch = {{.name = "received", .piece = ScratchRegion::Piece::kExtent}};
  const Ref sum = whole(Space::kOutput), received = whole(Space::kScratch);
  plan.loops = {
      once({arrive(), await_others(), copy(sum, whole(Space::kInput))}),
      fold({
          of_upper(send(kPartner, sum)),
          of_lower(receive(kPartner, received)),
          of_lower(next_to(kPartner, add(sum, received))),
      }),
      doubling_steps(false, {send(kPartner, sum), receive(kPartner, received), add(sum, received)}),
      fold({of_lower(send(kPartner, sum)), of_upper(receive(kPartner, sum))}),
  };
  return plan;
}

}  // namespace collective_ops
