// Between hosts, for small blocks: they go down a binomial tree, each rank's with those for the ranks below
// it. ceil(log2 n) messages one after the other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan scatter_tree() {
  Plan plan{.name = "tree",
            .collective = Collective::kScatter,
            .input = Layout::kConcatenated,
            .output = Layout::kOwn,
            .input_at_root = true};
  plan.scratch = {{.name = "subtree", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  const RankTerm below{.base = RankTerm::Base::kMe, .power = 1, .distance = 1};
  const auto each = [](Statement statement) { return repeated(Each::kSubtree, std::move(statement)); };
  plan.loops = {
      once({arrive(), await_others()}),
      tree_steps(true,
                 {
                     on_root(of_parent(kPartnerOfRoot,
                                       each(send(kPartnerOfRoot, block(Space::kInput, kMyself, below))))),
                     on_others(of_parent(kPartnerOfRoot,
                                         each(send(kPartnerOfRoot, block(Space::kScratch, kMyself, below))))),
                     of_child(kPartnerOfRoot,
                              each(receive(kPartnerOfRoot, block(Space::kScratch, kMyself, kDistanceUp)))),
                 }),
      once({
          on_root(copy(whole(Space::kOutput), block(Space::kInput, kMyself, kMyself))),
          on_others(copy(whole(Space::kOutput), block(Space::kScratch, kMyself, kMyself))),
      }),
  };
  return plan;
}

}  // namespace collective_ops
