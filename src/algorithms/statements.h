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

inline Ref block(Space space, RankTerm owner, RankTerm number, int region = 0) {
  return {.space = space, .owner = owner, .whole = false, .block = number, .region = region};
}

// The same of every rank, but this rank's own straight from its input.
inline Ref own_from_input(Ref ref) {
  ref.own_is_input = true;
  return ref;
}

inline Statement copy(Ref to, Ref from, Each each = Each::kNone) {
  return {.action = Action::kCopy, .each = each, .destinations = {to}, .sources = {from}};
}

inline Statement reduce(std::vector<Ref> to, std::vector<Ref> from) {
  return {.action = Action::kReduce, .destinations = std::move(to), .sources = std::move(from)};
}

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

}  // namespace collective_ops::statements
