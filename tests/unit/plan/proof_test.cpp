// The proof of every plan, for 1..64 ranks and all roots.
#include "plan/proof.h"

#include <vector>

#include <gtest/gtest.h>

#include "algorithm_parameter.h"
#include "plan/geometry.h"

namespace collective_ops {
namespace {

constexpr int kMostRanks = 64;
constexpr size_t kChunk = 64;
constexpr size_t kElement = 4;

std::vector<int> roots_of(const Plan& plan, int n) {
  if (!has_root(plan.collective)) return {0};
  std::vector<int> roots;
  for (int root = 0; root < n; ++root) roots.push_back(root);
  return roots;
}

// Counts that leave blocks empty, ragged, and several chunks long.
std::vector<size_t> counts_of(const Plan& plan, int n) {
  const size_t line = kChunk / kElement;
  if (plan.input == Layout::kSlices) return {0, 1, 37, n * line * 2 + 5};
  return {0, 1, 37, line * 5 + 3};
}

class ProofOfPlan : public testing::TestWithParam<Algorithm> {};

// Schedules and places take turns, and for more than a few ranks the counts with the roots, since all of them
// together would take minutes. Why one schedule is enough says proof.h.
TEST_P(ProofOfPlan, HoldsForAllRanksAndRoots) {
  const Plan& plan = plan_of(GetParam());
  uint64_t turn = 0;
  for (int n = 1; n <= kMostRanks; ++n) {
    for (int root : roots_of(plan, n)) {
      const std::vector<size_t> counts = counts_of(plan, n);
      for (size_t i = 0; i < counts.size(); ++i) {
        if (root > 0 && n > 12 && i != static_cast<size_t>(root) % counts.size()) continue;
        const size_t count = counts[i];
        const Binding binding{
            .world_size = n, .root = root, .element_size = kElement, .count = count, .chunk_bytes = kChunk};
        const bool in_place = ++turn % 2 == 0;
        const ProofCall calls[] = {{&plan, binding, in_place}, {&plan, binding, !in_place}};
        const Status status = prove(calls, {static_cast<Schedule::Order>(turn / 2 % 4), turn});
        ASSERT_TRUE(status.ok()) << n << " ranks, root " << root << ", count " << count << ": "
                                 << status.message();
      }
    }
  }
}

TEST_P(ProofOfPlan, HoldsUnderEveryScheduleForFewRanks) {
  const Plan& plan = plan_of(GetParam());
  for (int n : {1, 2, 3, 4, 5, 7, 8, 13}) {
    for (int root : roots_of(plan, n)) {
      for (size_t count : counts_of(plan, n)) {
        const Status status = prove(
            plan,
            {.world_size = n, .root = root, .element_size = kElement, .count = count, .chunk_bytes = kChunk});
        ASSERT_TRUE(status.ok()) << n << " ranks, count " << count << ": " << status.message();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProofOfPlan, testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         test_name);

// Counts of each pair of ranks from counts of each rank.
Binding spread(Binding binding) {
  const std::vector<size_t> each = std::move(binding.counts);
  binding.counts.clear();
  for (size_t source = 0; source < each.size(); ++source) {
    for (size_t destination = 0; destination < each.size(); ++destination) {
      binding.counts.push_back(each[(source * 3 + destination * 5) % each.size()]);
    }
  }
  return binding;
}

class ProofOfUnequalBlocks : public testing::TestWithParam<Algorithm> {};

TEST_P(ProofOfUnequalBlocks, Holds) {
  const Plan& plan = plan_of(GetParam());
  Binding binding{.world_size = 5, .element_size = 2, .counts = {7, 0, 300, 1, 64}, .chunk_bytes = kChunk};
  for (binding.root = 0; binding.root < 5; ++binding.root) {
    const Status status = prove(plan, is_by_pair(plan.input) ? spread(binding) : binding);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// For every number of ranks blocks of very different sizes, some of them empty; or all of them.
TEST_P(ProofOfUnequalBlocks, HoldsForAllRanks) {
  const Plan& plan = plan_of(GetParam());
  for (int n = 1; n <= kMostRanks; ++n) {
    for (int most : {0, 70}) {
      Binding binding{.world_size = n, .root = n / 3, .element_size = 1, .chunk_bytes = kChunk};
      for (int b = 0; b < n; ++b) binding.counts.push_back(b % 3 == 1 ? 0 : b * 29 % (most + 1));
      if (is_by_pair(plan.input)) binding = spread(binding);
      const ProofCall calls[] = {{&plan, binding, n % 2 == 0}, {&plan, binding, n % 2 == 1}};
      const Status status = prove(calls, {static_cast<Schedule::Order>(n % 4), 7});
      ASSERT_TRUE(status.ok()) << n << " ranks: " << status.message();
    }
  }
}

std::vector<Algorithm> algorithms_on_blocks() {
  std::vector<Algorithm> result;
  for (const Algorithm& algorithm : algorithms()) {
    const Plan& plan = plan_of(algorithm);
    if (has_counts(plan.input) || has_counts(plan.output)) result.push_back(algorithm);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(All, ProofOfUnequalBlocks, testing::ValuesIn(algorithms_on_blocks()), test_name);

// Scratch and slots are shared by all calls of a group.
TEST(ProofOfSequences, PlansFollowEachOtherInAnyOrder) {
  const int n = 4;
  std::vector<ProofCall> calls;
  uint64_t state = 1;
  for (int i = 0; i < 300; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const Algorithm& algorithm = algorithms()[(state >> 33) % algorithms().size()];
    calls.push_back({find_plan(algorithm.collective, algorithm.name),
                     {.world_size = n,
                      .root = static_cast<int>(state >> 40) % n,
                      .element_size = kElement,
                      .count = (state >> 45) % 200,
                      .chunk_bytes = kChunk},
                     (state >> 60) % 2 == 0});
  }
  for (auto order : {Schedule::Order::kForward, Schedule::Order::kBackward, Schedule::Order::kOneSlow,
                     Schedule::Order::kRandom}) {
    const Status status = prove(calls, {order, 3});
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ProofOfSequences, ARootMayRunAheadOfItsReaders) {
  const Plan& plan = *find_plan(Collective::kBroadcast, "one_shot");
  std::vector<ProofCall> calls;
  for (int i = 0; i < 3 * kEagerDepth; ++i) {
    calls.push_back({&plan, {.world_size = 5, .root = i % 3 == 2 ? 4 : 1, .count = 30}});
  }
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Status status = prove(calls, {Schedule::Order::kRandom, seed});
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ProofOfSequences, RefusesCallsThatCannotBeBound) {
  const Plan& plan = *find_plan(Collective::kBroadcast, "direct");
  EXPECT_EQ(prove(plan, {.world_size = 2, .root = 2}).code(), ErrorCode::kInvalidArgument);
  const ProofCall calls[] = {{&plan, {.world_size = 2}}, {&plan, {.world_size = 3}}};
  EXPECT_EQ(prove(calls).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace collective_ops
