#include "algorithms/algorithms.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "plan/program.h"

namespace collective_ops {
namespace {

TEST(Algorithms, RegistryNamesEveryPlanOnce) {
  std::set<std::pair<Collective, std::string_view>> seen;
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_TRUE(seen.emplace(algorithm.collective, algorithm.name).second) << algorithm.name;
    const Plan* plan = find_plan(algorithm.collective, algorithm.name);
    ASSERT_NE(plan, nullptr) << algorithm.name;
    EXPECT_EQ(plan->name, algorithm.name);
    EXPECT_EQ(plan->collective, algorithm.collective);
    EXPECT_EQ(find_plan(algorithm.collective, algorithm.name), plan) << "built once";
  }
  EXPECT_EQ(seen.size(), 53u);
}

TEST(Algorithms, UnknownNamesAreNotFound) {
  EXPECT_EQ(find_plan(Collective::kAllReduce, "arrival"), nullptr);
  EXPECT_EQ(find_plan(Collective::kSend, "direct"), nullptr);
}

// What a plan declares about peers' memory is what its programs do.
TEST(Algorithms, DeclaredUseOfPeersMemoryIsTheActualUse) {
  for (const Algorithm& algorithm : algorithms()) {
    const Plan& plan = *find_plan(algorithm.collective, algorithm.name);
    bool reads = false, reads_output = false, writes = false;
    bool reads_only_root = true, writes_only_root = true;
    for (int rank = 0; rank < 4; ++rank) {
      const auto program = lower(plan, {.rank = rank, .world_size = 4, .root = 2, .count = 1000});
      ASSERT_TRUE(program.ok()) << program.status().message();
      for (const Instruction& i : program.value().instructions) {
        for (int k = 0; k < i.destinations + i.sources; ++k) {
          const Operand& operand = program.value().operands[i.first + k];
          if (operand.owner == rank || operand.space == Space::kScratch) continue;
          const bool written = k < i.destinations;
          if (written) {
            EXPECT_EQ(operand.space, Space::kOutput);
          }
          (written ? writes : operand.space == Space::kOutput ? reads_output : reads) = true;
          (written ? writes_only_root : reads_only_root) &= operand.owner == 2;
        }
      }
    }
    EXPECT_EQ(plan.reads_peer_input, reads) << plan.name;
    EXPECT_EQ(plan.reads_peer_output, reads_output) << plan.name;
    EXPECT_EQ(plan.writes_peer_output, writes) << plan.name;
    EXPECT_EQ(plan.reads_only_root_input, reads && reads_only_root) << plan.name;
    EXPECT_EQ(plan.writes_only_root_output, writes && writes_only_root) << plan.name;
  }
}

}  // namespace
}  // namespace collective_ops
