// Between hosts: recursive halving. (n-1)/n S sent by each rank (S: all n blocks) in log2 n messages one
// after the other; where n is no power of two, the ranks beyond one take part by a partner below, with 2
// messages and S more.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan reduce_scatter_halving_doubling() {
  Plan plan{.name = "halving_doubling",
            .collective = Collective::kReduceScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .rank_ordered = false};
  const int sums = 0, received = 1;
  plan.scratch = {{.name = "sums", .piece = ScratchRegion::Piece::kExtent, .per_rank = true},
                  {.name = "received", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  const Ref all = whole(Space::kScratch, kMyself, sums);
  plan.loops = {
      once({arrive(), await_others(), copy(all, whole(Space::kInput))}),
      fold({
          of_upper(send(kPartner, all)),
          of_lower(receive(kPartner, whole(Space::kScratch, kMyself, received))),
          of_lower(add(all, whole(Space::kScratch, kMyself, received))),
      }),
      halving(Space::kScratch, sums, received),
      once({copy(whole(Space::kOutput), block(Space::kScratch, kMyself, kMyself, sums))}),
      fold({
          of_lower(send(kPartner, block(Space::kScratch, kMyself, kPartner, sums))),
          of_upper(receive(kPartner, whole(Space::kOutput))),
      }),
  };
  return plan;
}

}  // namespace collective_ops
