// Between hosts, for small blocks (Bruck): a block that has to go up by d ranks goes by the bits of d, the
// lowest first, together with all others that have that bit. ceil(log2 n) messages one after the other, of
// about S/2 each (S: all n blocks of one rank). Pile d holds the block that this rank has, on its way, of
// those that go up by d.
#include "algorithms/algorithms.h"
#include "algorithms/statements.h"

namespace collective_ops {

using namespace statements;

Plan all_to_all_bruck() {
  Plan plan{.name = "bruck",
            .collective = Collective::kAllToAll,
            .input = Layout::kByDestination,
            .output = Layout::kBySource};
  const Statement own = copy(block(Space::kOutput, kMyself, kMyself), block(Space::kInput, kMyself, kMyself));
  plan.scratch = {{.name = "on_its_way", .piece = ScratchRegion::Piece::kPiles}};
  // Block of pile d when it has gone up by the bits of d below 2^step, of 2^step (`moved`) too, and by all.
  const auto pile = [](RankTerm sender, RankTerm receiver) {
    Ref ref = block(Space::kScratch, kMyself, receiver);
    ref.pile = {.base = RankTerm::Base::kZero, .distance = 1};
    ref.sender = sender;
    return ref;
  };
  const Ref first = pile(kMyself, kDistanceUp), last = pile(kDistanceDown, kMyself);
  const Ref held = pile({.low_bits = -1}, {.distance = 1, .low_bits = -1});
  const Ref moved = pile({.power = -1, .low_bits = -1}, {.power = -1, .distance = 1, .low_bits = -1});
  plan.loops = {
      once({
          arrive(),
          await_others(),
          own,
          repeated(Each::kDistances, copy(first, block(Space::kInput, kMyself, kDistanceUp))),
      }),
      tree_steps(false,
                 {
                     repeated(Each::kBit, send(kPowerUp, held)),
                     repeated(Each::kBit, receive(kPowerDown, moved)),
                 }),
      once({repeated(Each::kDistances, copy(block(Space::kOutput, kMyself, kDistanceDown), last))}),
  };
  return plan;
}

}  // namespace collective_ops
