// The bytes that plans move are the formulas of docs/algorithms.md; times follow them.
#include "plan/cost.h"

#include <gtest/gtest.h>

#include "algorithms/algorithms.h"
#include "plan/geometry.h"

namespace collective_ops {
namespace {

// A vector, or n blocks, of `bytes` in all; chunks of 1 KiB.
Binding binding_of(const Plan& plan, int n, uint64_t bytes) {
  const bool blocks = has_counts(plan.input) || has_counts(plan.output);
  return {.world_size = n, .element_size = 4, .count = bytes / 4 / (blocks ? n : 1), .chunk_bytes = 1024};
}

Cost cost_of(Collective collective, std::string_view name, int n, uint64_t bytes, int cores = 0) {
  const Plan& plan = *find_plan(collective, name);
  const auto result = cost(plan, binding_of(plan, n, bytes), measured_defaults(n, cores == 0 ? n : cores));
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : Cost{};
}

TEST(Cost, BytesAreTheFormulas) {
  for (uint64_t n : {1, 2, 3, 4, 8, 16}) {
    const uint64_t s = n * 3 * 1024;
    const auto bytes = [&](Collective collective, std::string_view name) {
      return cost_of(collective, name, static_cast<int>(n), s).bytes();
    };
    EXPECT_EQ(bytes(Collective::kAllReduce, "direct"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllReduce, "two_shot"), (5 * n - 2) * s) << n;
    EXPECT_EQ(bytes(Collective::kAllReduce, "read"), (3 * n - 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kAllReduce, "one_shot"), (n * n + 3 * n) * s) << n;
    EXPECT_EQ(bytes(Collective::kBroadcast, "direct"), 2 * (n - 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kBroadcast, "push"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kBroadcast, "one_shot"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kBroadcast, "staged"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllGather, "direct"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllGather, "push"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllGather, "one_shot"), (2 * n + 2) * s) << n;
    EXPECT_EQ(bytes(Collective::kAllGather, "staged"), (2 * n + 2) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduceScatter, "direct"), (n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduceScatter, "one_shot"), (3 * n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduceScatter, "staged"), (3 * n - 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "one_shot"), (3 * n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "direct"), (n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "read"), (n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "staged"), (3 * n + 3) * s) << n;
    EXPECT_EQ(bytes(Collective::kGather, "one_shot"), (4 * n - 2) * s / n) << n;
    EXPECT_EQ(bytes(Collective::kGather, "direct"), 2 * s) << n;
    EXPECT_EQ(bytes(Collective::kGather, "push"), 2 * s) << n;
    EXPECT_EQ(bytes(Collective::kGather, "staged"), (4 * n - 2) * s / n) << n;
    EXPECT_EQ(bytes(Collective::kScatter, "one_shot"), 4 * s) << n;
    EXPECT_EQ(bytes(Collective::kScatter, "direct"), 2 * s) << n;
    EXPECT_EQ(bytes(Collective::kScatter, "staged"), (4 * n - 2) * s / n) << n;
    EXPECT_EQ(bytes(Collective::kAllToAll, "one_shot"), 4 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllToAll, "direct"), 2 * n * s) << n;
    EXPECT_EQ(bytes(Collective::kAllToAll, "staged"), (4 * n - 2) * s) << n;
    EXPECT_EQ(bytes(Collective::kBarrier, "arrival"), 0u);
  }
}

// Sent once by each rank per hop; a message is copied into a channel and out of it.
TEST(Cost, MessagesOfRingsAreTheWireBound) {
  const uint64_t n = 4, s = n * 3 * 1024;
  const Cost ring = cost_of(Collective::kAllReduce, "ring", n, s);
  const uint64_t sent = n * 2 * (n - 1) * s / n;
  EXPECT_EQ(ring.copied_bytes, 4 * sent + n * 2 * (s / n) + n * 2 * (s / n));
  EXPECT_EQ(ring.reduced_bytes, n * (n - 1) * 3 * (s / n));
}

TEST(Cost, RoundsAreTheSynchronisationsOneAfterTheOther) {
  const int n = 8;
  const uint64_t one_chunk = n * 1024, three_chunks = n * 3 * 1024;
  EXPECT_EQ(cost_of(Collective::kBarrier, "arrival", n, 0).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "one_shot", n, one_chunk).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "direct", n, one_chunk).rounds, 2u);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "read", n, three_chunks).rounds, 3u);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "two_shot", n, one_chunk).rounds, 3u);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "two_shot", n, three_chunks).rounds, 5u);
  EXPECT_EQ(cost_of(Collective::kReduceScatter, "staged", n, three_chunks).rounds, 4u);
  EXPECT_EQ(cost_of(Collective::kReduce, "one_shot", n, one_chunk).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kReduce, "direct", n, one_chunk).rounds, 2u);
  EXPECT_EQ(cost_of(Collective::kReduce, "read", n, one_chunk).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kReduce, "staged", n, three_chunks).rounds, 5u);
  EXPECT_EQ(cost_of(Collective::kGather, "direct", n, three_chunks).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kGather, "staged", n, three_chunks).rounds, 4u);
  EXPECT_EQ(cost_of(Collective::kScatter, "direct", n, three_chunks).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kScatter, "staged", n, three_chunks).rounds, 3u);
  EXPECT_EQ(cost_of(Collective::kAllToAll, "one_shot", n, one_chunk).rounds, 1u);
  EXPECT_EQ(cost_of(Collective::kAllToAll, "direct", n, one_chunk).rounds, 2u);
  EXPECT_EQ(cost_of(Collective::kAllToAll, "staged", n, three_chunks).rounds, 4u);
  EXPECT_EQ(cost_of(Collective::kAllGather, "ring", n, one_chunk).rounds, 1u + 7);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "ring", n, one_chunk).rounds, 1u + 14);
  EXPECT_EQ(cost_of(Collective::kAllReduce, "tree", n, one_chunk).rounds, 1u + 6);
  EXPECT_EQ(cost_of(Collective::kBroadcast, "tree", 9, one_chunk).rounds, 1u + 4);
}

TEST(Cost, CoresAreSharedWhereRanksOutnumberThem) {
  const uint64_t s = 8 * 1024;
  const Cost wide = cost_of(Collective::kAllReduce, "direct", 8, s, 8);
  const Cost narrow = cost_of(Collective::kAllReduce, "direct", 8, s, 2);
  EXPECT_EQ(wide.bytes(), narrow.bytes());
  EXPECT_DOUBLE_EQ(narrow.core_ns, 4 * wide.core_ns);
  EXPECT_GT(narrow.latency_ns, wide.latency_ns);
}

TEST(Cost, MemoryCountsWhatTheCachesDoNotHold) {
  EXPECT_EQ(cost_of(Collective::kAllReduce, "two_shot", 4, 4 * 1024).memory_bytes, 0u);
  const uint64_t s = uint64_t{64} << 20;
  const Cost staged = cost_of(Collective::kAllReduce, "two_shot", 4, s);
  EXPECT_EQ(staged.memory_bytes, 2 * 4 * s) << "chunks of scratch stay in the cache";
  EXPECT_EQ(cost_of(Collective::kAllReduce, "direct", 4, s).memory_bytes, 2 * 4 * s);
}

TEST(Cost, RanksThePlansAsTheyAreMeasured) {
  const auto total = [](std::string_view name, int n, uint64_t bytes, int cores) {
    return cost_of(Collective::kAllReduce, name, n, bytes, cores).total_ns();
  };
  EXPECT_LT(total("one_shot", 8, 1024, 2), total("two_shot", 8, 1024, 2)) << "one synchronisation";
  EXPECT_LT(total("direct", 8, 64 << 20, 2), total("two_shot", 8, 64 << 20, 2)) << "fewest bytes";
  EXPECT_LT(total("two_shot", 8, 1 << 20, 8), total("one_shot", 8, 1 << 20, 8)) << "n^2";
  EXPECT_LT(total("two_shot", 8, 1 << 20, 8), total("ring", 8, 1 << 20, 8));
}

TEST(Cost, RefusesACallOfAnotherGroup) {
  const Plan& plan = *find_plan(Collective::kBarrier, "arrival");
  EXPECT_EQ(cost(plan, {.world_size = 4}, measured_defaults(3, 2)).status().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(cost(plan, {.world_size = 3}, measured_defaults(3, 0)).status().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace collective_ops
