// Words for writing plans down. Nothing here adds meaning to plan/plan.h.
#pragma once

#include <utility>
#include <vector>

#include "plan/plan.h"

namespace collective_ops::statements {

inline constexpr RankTerm kNextRank{.base = RankTerm::Base::kMe, .offset = 1};
inline constexpr RankTerm kPreviousRank{.base = RankTerm::Base::kMe, .offset = -1};

inline Ref whole(Space space, RankTerm owner = kMyself, int region = 0) {
  return {.space = space, .owner = owner, .whole = true, .region = region};
}

// The first (1) or the second (2) half of a vector in slices.
inline Ref half(Space space, int which, int region = 0) {
  return {.space = space, .region = region, .half = which};
}

inline Ref block(Space space, RankTerm owner, RankTerm number, int region = 0) {
  return {.space = space, .owner = owner, .whole = false, .block = number, .region = region};
}

// The same of every rank, but this rank's own straight from its input, or straight into its output.
inline Ref own_from_input(Ref ref) {
  ref.own_is_callers = true;
  return ref;
}
inline Ref own_to_output(Ref ref) { return own_from_input(ref); }

inline Statement copy(Ref to, Ref from, Each each = Each::kNone) {
  return {.action = Action::kCopy, .each = each, .destinations = {to}, .sources = {from}};
}

inline Statement reduce(std::vector<Ref> to, std::vector<Ref> from) {
  return {.action = Action::kReduce, .destinations = std::move(to), .sources = std::move(from)};
}
inline Statement add(Ref sum, Ref term) { return reduce({sum}, {sum, term}); }

inline Statement arrive() { return {.action = Action::kArrive}; }
inline Statement await_others() { return {.action = Action::kAwait, .each = Each::kOthers}; }
inline Statement await_root() {
  return {.action = Action::kAwait, .guard = Guard::kOthers, .peer = kTheRoot};
}

inline Statement signal() { return {.action = Action::kSignal}; }
inline Statement wait_others() { return {.action = Action::kWait, .each = Each::kOthers}; }
inline Statement wait_root() { return {.action = Action::kWait, .guard = Guard::kOthers, .peer = kTheRoot}; }

inline Statement send(RankTerm peer, Ref from) {
  return {.action = Action::kSend, .sources = {from}, .peer = peer};
}
inline Statement receive(RankTerm peer, Ref to) {
  return {.action = Action::kReceive, .destinations = {to}, .peer = peer};
}

inline Statement lagging(int lag, Statement statement) {
  statement.lag = lag;
  return statement;
}
inline Statement on_root(Statement statement) {
  statement.guard = Guard::kRoot;
  return statement;
}
inline Statement on_others(Statement statement) {
  statement.guard = Guard::kOthers;
  return statement;
}

inline Statement repeated(Each each, Statement statement) {
  statement.each = each;
  return statement;
}
// Where rank `neighbour` exists.
inline Statement next_to(RankTerm neighbour, Statement statement) {
  statement.peer = neighbour;
  return statement;
}

// Of doubling and its folds; of trees whose root is rank 0, or the root.
inline constexpr RankTerm kPartner{.base = RankTerm::Base::kZero, .xor_step = true};
inline constexpr RankTerm kPartnerOfRoot{.base = RankTerm::Base::kRoot, .xor_step = true};

// Ranks and blocks at the distance d of a repeated statement, at 2^step, and at both.
inline constexpr RankTerm kPowerUp{.base = RankTerm::Base::kMe, .power = 1};
inline constexpr RankTerm kPowerDown{.base = RankTerm::Base::kMe, .power = -1};
inline constexpr RankTerm kDistanceUp{.base = RankTerm::Base::kMe, .distance = 1};
inline constexpr RankTerm kDistanceDown{.base = RankTerm::Base::kMe, .distance = -1};

// Of a binomial tree; `partner` is its edge in this step.
inline Statement of_child(RankTerm partner, Statement statement) {
  statement.peer = partner;
  statement.only = Statement::Only::kChild;
  return statement;
}
inline Statement of_parent(RankTerm partner, Statement statement) {
  statement.peer = partner;
  statement.only = Statement::Only::kParent;
  return statement;
}

inline Loop once(std::vector<Statement> body) { return {.over = Loop::Over::kOnce, .body = std::move(body)}; }
inline Loop chunks(std::vector<Statement> body) {
  return {.over = Loop::Over::kChunks, .body = std::move(body)};
}
inline Loop ring_steps(std::vector<Statement> body) {
  return {.over = Loop::Over::kSteps, .steps = Loop::Steps::kRing, .body = std::move(body)};
}
inline Loop tree_steps(bool descending, std::vector<Statement> body) {
  return {.over = Loop::Over::kSteps,
          .steps = Loop::Steps::kLog2,
          .descending = descending,
          .body = std::move(body)};
}

// With ranks that number a power of two; fold() lets the others take part by one below them.
inline Loop doubling_steps(bool descending, std::vector<Statement> body) {
  return {.over = Loop::Over::kSteps,
          .steps = Loop::Steps::kDoubling,
          .descending = descending,
          .body = std::move(body)};
}
inline Loop fold(std::vector<Statement> body) {
  return {.over = Loop::Over::kSteps, .steps = Loop::Steps::kFold, .body = std::move(body)};
}
inline Statement of_upper(Statement statement) {
  statement.only = Statement::Only::kUpper;
  return statement;
}
inline Statement of_lower(Statement statement) {
  statement.only = Statement::Only::kLower;
  return statement;
}

// Partial sums of n blocks meet at their owners: what a rank has of block b, at a distance d above it, goes
// down by the lowest bit of d when all that comes from above has been added. ceil(log2 n) messages one after
// the other, for any n, and (n-1)/n of the bytes sent by each rank. `sums` holds the rank's own input
// before, `received` is a region of scratch with a piece per rank.
inline Loop hierarchical_reduce_scatter(Space sums, int region_of_sums, int received) {
  const RankTerm kept{.base = RankTerm::Base::kMe, .power = 1, .distance = -1};
  return tree_steps(
      false,
      {
          repeated(Each::kLowestBit, send(kPowerDown, block(sums, kMyself, kDistanceDown, region_of_sums))),
          repeated(Each::kLowestBit, receive(kPowerUp, block(Space::kScratch, kMyself, kept, received))),
          repeated(Each::kLowestBit, add(block(sums, kMyself, kept, region_of_sums),
                                         block(Space::kScratch, kMyself, kept, received))),
      });
}

// The way back: n blocks of the output go from their owners to all. As many messages and bytes.
inline Loop hierarchical_all_gather() {
  const RankTerm kept{.base = RankTerm::Base::kMe, .power = 1, .distance = -1};
  return tree_steps(
      true,
      {
          repeated(Each::kLowestBit, send(kPowerUp, block(Space::kOutput, kMyself, kept))),
          repeated(Each::kLowestBit, receive(kPowerDown, block(Space::kOutput, kMyself, kDistanceDown))),
      });
}

// Recursive halving: with each step a rank gives away half of the blocks that it still sums up.
inline Loop halving(Space sums, int region_of_sums, int received) {
  const Ref mine = block(sums, kMyself, kEachRank, region_of_sums);
  const Ref other = block(Space::kScratch, kMyself, kEachRank, received);
  return doubling_steps(true, {
                                  repeated(Each::kPartnersShare, send(kPartner, mine)),
                                  repeated(Each::kMyShare, receive(kPartner, other)),
                                  repeated(Each::kMyShare, add(mine, other)),
                              });
}

// The way back: with each step a rank has twice as many blocks of the output.
inline Loop doubling() {
  const Ref each = block(Space::kOutput, kMyself, kEachRank);
  return doubling_steps(false, {
                                   repeated(Each::kMyShare, send(kPartner, each)),
                                   repeated(Each::kPartnersShare, receive(kPartner, each)),
                               });
}

}  // namespace collective_ops::statements
