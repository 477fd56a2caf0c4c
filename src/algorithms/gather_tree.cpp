// Between hosts, for small blocks: they go up a binomial tree to the root, each rank's with those from below
// it. ceil(log2 n) messages one after the other.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan gather_tree() {
  Plan plan{.name = "tree",
            .collective = Collective::kGather,
            .input = Layout::kOwn,
            .output = Layout::kConcatenated,
            .output_at_root = true};
  plan.scratch = {{.name = "subtree", .piece = ScratchRegion::Piece::kExtent, .per_rank = true}};
  const RankTerm below{.base = RankTerm::Base::kMe, .power = 1, .distance = 1};
  const auto each = [](Statement statement) { return repeated(Each::kSubtree, std::move(statement)); };
  plan.loops = {
      once({
          arrive(),
          await_others(),
          on_root(copy(block(Space::kOutput, kMyself, kMyself), whole(Space::kInput))),
          on_others(copy(block(Space::kScratch, kMyself, kMyself), whole(Space::kInput))),
      }),
      tree_steps(
          false,
          {
              of_child(kPartnerOfRoot,
                       each(send(kPartnerOfRoot, block(Space::kScratch, kMyself, kDistanceUp)))),
              on_others(of_parent(kPartnerOfRoot,
                                  each(receive(kPartnerOfRoot, block(Space::kScratch, kMyself, below))))),
              on_root(of_parent(kPartnerOfRoot,
                                each(receive(kPartnerOfRoot, block(Space::kOutput, kMyself, below))))),
          }),
  };
  return plan;
}

}  // namespace collective_ops
