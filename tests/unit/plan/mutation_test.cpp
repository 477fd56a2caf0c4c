// The proof must fail on plans that are spoiled: every statement dropped, every block, owner, peer, lag and
// depth moved by one, in turn.
#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "algorithm_parameter.h"
#include "algorithms/statements.h"
#include "plan/geometry.h"
#include "plan/proof.h"

namespace collective_ops {
namespace {

using testing::HasSubstr;
using namespace statements;

constexpr int kRanks = 5;

// Between calls of staged plans, whose peers read scratch until the next arrival. Blocks and slices are
// of several lengths, so that mistaken ones are noticed.
Status prove_among_others(const Plan& plan) {
  Binding binding{.world_size = kRanks, .root = 2, .count = 613, .chunk_bytes = 64};
  if (is_by_pair(plan.input)) {
    for (size_t pair = 0; pair < kRanks * kRanks; ++pair) binding.counts.push_back(40 + 7 * pair % 90);
  } else if (has_counts(plan.input) || has_counts(plan.output)) {
    binding.counts = {60, 90, 33, 124, 101};
  }
  const Plan* others[] = {find_plan(Collective::kAllReduce, "two_shot"),
                          find_plan(Collective::kAllGather, "staged"),
                          find_plan(Collective::kReduceScatter, "staged"),
                          find_plan(Collective::kBroadcast, "staged")};
  std::vector<ProofCall> calls;
  for (int i = 0; i < 2 * kEagerDepth; ++i) {
    calls.push_back({others[static_cast<size_t>(i) % std::size(others)], {.world_size = kRanks, .count = 130, .chunk_bytes = 64}});
    calls.push_back({&plan, binding, i % 2 == 1});
    calls.push_back({&plan, binding, i % 2 == 0});
  }
  return prove(calls, {Schedule::Order::kRandom, 5});
}

using Mutants = std::vector<std::pair<std::string, Plan>>;

// A copy of `plan` in which statement s of loop l was changed.
Plan changed(const Plan& plan, size_t l, size_t s, const std::function<void(Statement&)>& change) {
  Plan mutant = plan;
  change(mutant.loops[l].body[s]);
  return mutant;
}

void next_rank(RankTerm& term) { ++term.offset; }

void mutate_refs(const Plan& plan, size_t l, size_t s, std::vector<Ref> Statement::*side, const char* name,
                 Mutants& mutants) {
  const Statement& statement = plan.loops[l].body[s];
  for (size_t i = 0; i < (statement.*side).size(); ++i) {
    const Ref& ref = (statement.*side)[i];
    // Of all ranks, or all of the ranks moved by one: a reduction names each of them all the same.
    const bool all = statement.action == Action::kReduce && ref.owner.base == RankTerm::Base::kEach;
    if (!all) {
      mutants.emplace_back(fmt::format("{}.{}: {} {} of the next rank", l, s, name, i),
                           changed(plan, l, s, [&](Statement& m) { next_rank((m.*side)[i].owner); }));
    }
    if (!ref.whole) {
      mutants.emplace_back(fmt::format("{}.{}: {} {} of the next block", l, s, name, i),
                           changed(plan, l, s, [&](Statement& m) { next_rank((m.*side)[i].block); }));
    }
  }
}

void mutate_statement(const Plan& plan, size_t l, size_t s, Mutants& mutants) {
  const Statement& statement = plan.loops[l].body[s];
  Plan without = plan;
  without.loops[l].body.erase(without.loops[l].body.begin() + static_cast<ptrdiff_t>(s));
  mutants.emplace_back(fmt::format("{}.{}: dropped", l, s), without);
  mutate_refs(plan, l, s, &Statement::destinations, "destination", mutants);
  mutate_refs(plan, l, s, &Statement::sources, "source", mutants);
  if (plan.loops[l].over == Loop::Over::kChunks && statement.action != Action::kSignal) {
    mutants.emplace_back(fmt::format("{}.{}: later by one chunk", l, s),
                         changed(plan, l, s, [](Statement& m) { ++m.lag; }));
  }
  if (statement.lag > 0) {
    mutants.emplace_back(fmt::format("{}.{}: earlier by one chunk", l, s),
                         changed(plan, l, s, [](Statement& m) { --m.lag; }));
  }
  if (statement.each == Each::kOthers || statement.each == Each::kAll) {
    mutants.emplace_back(fmt::format("{}.{}: for one peer only", l, s), changed(plan, l, s, [](Statement& m) {
                           m.each = Each::kNone;
                           if (m.peer.base == RankTerm::Base::kEach) m.peer = kNextRank;
                           for (auto* side : {&m.destinations, &m.sources}) {
                             for (Ref& ref : *side) {
                               if (ref.owner.base == RankTerm::Base::kEach) ref.owner = kNextRank;
                               if (ref.block.base == RankTerm::Base::kEach) ref.block = kNextRank;
                             }
                           }
                         }));
  }
  if (statement.guard != Guard::kEveryone) {
    mutants.emplace_back(fmt::format("{}.{}: by the wrong ranks", l, s),
                         changed(plan, l, s, [](Statement& m) {
                           m.guard = m.guard == Guard::kRoot ? Guard::kOthers : Guard::kRoot;
                         }));
  }
}

Mutants mutants_of(const Plan& plan) {
  Mutants mutants;
  for (size_t l = 0; l < plan.loops.size(); ++l) {
    for (size_t s = 0; s < plan.loops[l].body.size(); ++s) mutate_statement(plan, l, s, mutants);
  }
  for (size_t i = 0; i < plan.scratch.size(); ++i) {
    if (plan.scratch[i].piece != ScratchRegion::Piece::kChunk) continue;
    Plan shallow = plan;
    --shallow.scratch[i].depth;
    mutants.emplace_back(fmt::format("scratch {}: depth less by one", i), shallow);
  }
  return mutants;
}

bool sends(const Plan& plan) {
  return std::ranges::any_of(plan.loops, [](const Loop& loop) {
    return std::ranges::any_of(loop.body, [](const Statement& s) { return s.action == Action::kSend; });
  });
}

// Changes that leave a plan right, and why.
std::set<std::string> harmless(const Plan& plan) {
  const auto is = [&](Collective collective, std::string_view name) {
    return plan.collective == collective && plan.name == name;
  };
  // Who writes scratch then only runs less far ahead.
  if (is(Collective::kBroadcast, "staged") || is(Collective::kGather, "staged") ||
      is(Collective::kScatter, "staged")) {
    return {"1.0: earlier by one chunk"};
  }
  // A copy between two buffers of one rank may happen at any time.
  if (is(Collective::kAllGather, "staged")) return {"1.2: later by one chunk"};
  // Each rank may as well bring its neighbour's input into the sum.
  if (is(Collective::kReduceScatter, "nhr") || is(Collective::kReduce, "nhr")) {
    return {"0.2: source 0 of the next rank"};
  }
  // A part goes to all ranks in whatever order, and nobody looks at it before the signal behind the loop.
  if (is(Collective::kBroadcast, "push") || is(Collective::kAllGather, "push")) {
    return {"1.0: destination 0 of the next rank", "1.0: later by one chunk"};
  }
  // Without scratch, arrival only finds ranks that make another call.
  if (plan.scratch.empty() && sends(plan)) return {"0.1: dropped", "0.1: for one peer only"};
  return {};
}

class SpoiledPlan : public testing::TestWithParam<Algorithm> {};

TEST_P(SpoiledPlan, IsRefuted) {
  const Plan& plan = plan_of(GetParam());
  const Status status = prove_among_others(plan);
  ASSERT_TRUE(status.ok()) << status.message();
  std::set<std::string> survivors;
  const Mutants mutants = mutants_of(plan);
  EXPECT_GE(mutants.size(), 3u);
  for (const auto& [what, mutant] : mutants) {
    if (prove_among_others(mutant).ok()) survivors.insert(what);
  }
  EXPECT_EQ(survivors, harmless(plan));
}

INSTANTIATE_TEST_SUITE_P(All, SpoiledPlan, testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         test_name);

// The words of a refutation name ranks, instructions and bytes.
std::string refutation(const Plan& plan) {
  const Binding binding{.world_size = 3, .count = 96, .chunk_bytes = 64};
  const ProofCall calls[] = {{&plan, binding}, {&plan, binding}};
  return prove(calls).message();
}

TEST(Refutation, NamesWhoWaitsForWhom) {
  Plan plan = all_reduce_direct();
  plan.loops[0].body.erase(plan.loops[0].body.begin() + 3);  // signal
  EXPECT_THAT(refutation(plan),
              HasSubstr("nobody can go on: rank 0 (call 0, instruction 4, iteration 0) waits for "
                        "rank 1 to reach step 1; rank 1"));
}

TEST(Refutation, NamesBothSidesOfARace) {
  Plan plan = all_gather_direct();
  plan.loops[0].body.pop_back();  // the wait that keeps my input for peers
  EXPECT_THAT(
      refutation(plan),
      HasSubstr("rank 0 (call 0, instruction 5, iteration 0) reads bytes [0, 384) of rank 2's input in no "
                "order with a write: the caller of rank 2 (call 0)"));
}

TEST(Refutation, OfADepthTooSmallNamesScratch) {
  Plan plan = all_reduce_two_shot();
  plan.scratch[0].depth = 1;
  EXPECT_THAT(refutation(plan), HasSubstr("'s scratch in no order with a"));
}

TEST(Refutation, OfAReductionOutOfOrder) {
  Plan plan = reduce_scatter_direct();
  plan.loops[0].body[2].sources.clear();
  for (int i = 0; i < 3; ++i) {
    plan.loops[0].body[2].sources.push_back(
        block(Space::kInput, {.base = RankTerm::Base::kMe, .offset = i}, kMyself));
  }
  EXPECT_THAT(refutation(plan), HasSubstr("not combined in the order of ranks"));
  plan.rank_ordered = false;
  EXPECT_EQ(refutation(plan), "");
}

TEST(Refutation, OfPartialResultsInAPlanThatSaysRankOrdered) {
  Plan plan = all_reduce_ring();
  plan.rank_ordered = true;
  EXPECT_THAT(refutation(plan), HasSubstr("partial result"));
}

TEST(Refutation, OfAnInputReducedTwice) {
  Plan plan = all_reduce_one_shot();
  plan.rank_ordered = false;
  plan.loops[0].body.push_back(
      reduce({whole(Space::kOutput)}, {whole(Space::kOutput), whole(Space::kInput)}));
  EXPECT_THAT(refutation(plan), HasSubstr("the input of rank 2 2 times instead of 1"));
}

TEST(Refutation, OfOtherBytesThanBelongThere) {
  Plan plan = reduce_scatter_one_shot();
  next_rank(plan.loops[0].body[3].sources[0].block);
  EXPECT_THAT(refutation(plan), HasSubstr("byte 0 of rank 0's input of call 0, where byte 768 belongs"));
}

TEST(Refutation, OfACounterThatFalls) {
  Plan plan = barrier_arrival();
  Statement second = signal();
  second.signal = 1;
  plan.loops.push_back(once({second, signal()}));
  EXPECT_THAT(refutation(plan), HasSubstr("lowers its counter to 1"));
}

TEST(Refutation, OfAMessageThatNobodyReceives) {
  Plan plan = broadcast_tree();
  plan.loops[0].body.push_back(on_root(send(kNextRank, whole(Space::kInput))));
  plan.loops.pop_back();
  plan.loops.push_back(once(
      {on_others(copy(whole(Space::kOutput), whole(Space::kInput, kTheRoot))), signal(), wait_others()}));
  EXPECT_THAT(refutation(plan), HasSubstr("rank 0 sent 2 messages to rank 1 that were not received"));
}

TEST(Refutation, OfABarrierThatMayBeLeftEarly) {
  Plan plan = barrier_arrival();
  plan.loops[0].body[1].each = Each::kNone;
  plan.loops[0].body[1].peer = kNextRank;
  EXPECT_THAT(refutation(plan), HasSubstr("may leave the barrier before"));
}

TEST(Refutation, OfAnInputThatIsOverwritten) {
  Plan plan = reduce_scatter_one_shot();
  plan.loops[0].body.push_back(copy(block(Space::kInput, kMyself, kMyself), whole(Space::kOutput)));
  EXPECT_THAT(refutation(plan), HasSubstr("input of call 0 was changed"));
}

TEST(Refutation, OfBytesThatNobodyWrote) {
  Plan plan = all_gather_one_shot();
  plan.loops[0].body.erase(plan.loops[0].body.begin());
  EXPECT_THAT(refutation(plan), HasSubstr("that nobody wrote"));
}

}  // namespace
}  // namespace collective_ops
