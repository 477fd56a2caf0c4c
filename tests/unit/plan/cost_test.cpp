// The bytes that plans move are the formulas of docs/algorithms.md; times follow them.
#include "plan/cost.h"

#include <cmath>

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
    EXPECT_EQ(bytes(Collective::kAllReduce, "two_shot"), (6 * n - 4) * s) << n;
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
    EXPECT_EQ(bytes(Collective::kReduce, "one_shot"), (3 * n - 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "direct"), (n + 1) * s) << n;
    EXPECT_EQ(bytes(Collective::kReduce, "pull"), (n + 1) * s) << n;
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
  EXPECT_EQ(cost_of(Collective::kReduce, "pull", n, one_chunk).rounds, 1u);
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
  EXPECT_GT(narrow.core_ns, 2 * wide.core_ns);
  EXPECT_GT(narrow.latency_ns, wide.latency_ns);
}

TEST(Cost, MemoryCountsWhatTheCachesDoNotHold) {
  const Cost small = cost_of(Collective::kAllReduce, "two_shot", 4, 4 * 1024);
  EXPECT_EQ(small.memory_bytes, 0u);
  EXPECT_EQ(small.memory_ns, 0);
  const uint64_t s = uint64_t{64} << 20;
  const Cost staged = cost_of(Collective::kAllReduce, "two_shot", 4, s);
  EXPECT_EQ(staged.memory_bytes, 2 * 4 * s) << "chunks of scratch stay in the cache";
  const Cost direct = cost_of(Collective::kAllReduce, "direct", 4, s);
  EXPECT_EQ(direct.memory_bytes, 2 * 4 * s);
  EXPECT_GT(direct.core_ns + direct.memory_ns,
            0.9 * static_cast<double>(2 * 4 * s) / measured_defaults(4, 4).memory_bytes_per_ns);
}

// Every plan comes to an end, on any machine, in a time that grows with the bytes.
TEST(Cost, EveryPlanIsPlayedToItsEnd) {
  for (const Algorithm& algorithm : algorithms()) {
    const Plan& plan = *find_plan(algorithm.collective, algorithm.name);
    for (int n : {1, 2, 3, 5, 8}) {
      for (int cores : {1, 2, 8}) {
        double last = 0;
        for (uint64_t bytes : {0, 4096, 1 << 20}) {
          Binding binding = binding_of(plan, n, bytes);
          binding.chunk_bytes = 16384;
          binding.root = n - 1;
          const auto result = cost(plan, binding, measured_defaults(n, cores));
          ASSERT_TRUE(result.ok()) << result.status().message();
          const double total = result->total_ns();
          EXPECT_TRUE(std::isfinite(total) && total >= 0) << plan.name << " " << n << " " << bytes;
          EXPECT_GE(total, 0.5 * last) << plan.name << " " << n << " " << cores << " " << bytes;
          last = total;
        }
        EXPECT_GT(last, 0) << plan.name;
      }
    }
  }
}

TEST(Cost, AHandOverIsPaidWhereARankWaits) {
  Topology topology = measured_defaults(2, 2);
  const Plan& barrier = *find_plan(Collective::kBarrier, "arrival");
  const double before = cost(barrier, {.world_size = 2}, topology)->total_ns();
  topology.signal_ns += 1000;
  EXPECT_NEAR(cost(barrier, {.world_size = 2}, topology)->total_ns(), before + 1000, 1);
  topology.cores = 1;  // the two take turns instead
  EXPECT_GT(cost(barrier, {.world_size = 2}, topology)->total_ns(), topology.yield_ns);
}

TEST(Cost, SystemCallsArePaidWhereThePeersMemoryIsPrivate) {
  const Plan& plan = *find_plan(Collective::kAllToAll, "direct");
  const Binding binding{.world_size = 4, .count = 1000};
  const Topology topology = measured_defaults(4, 4);
  EXPECT_GT(cost(plan, binding, topology, true)->total_ns(),
            cost(plan, binding, topology)->total_ns() + 2 * topology.read_call_ns);
}

TEST(Cost, LinksBetweenHostsCarryMessages) {
  const Plan& ring = *find_plan(Collective::kAllReduce, "ring");
  const Plan& tree = *find_plan(Collective::kAllReduce, "recursive_doubling");
  Topology topology = measured_defaults(4, 2);
  topology.hosts = 4;
  const auto at = [&](const Plan& plan, size_t count) {
    const auto result = cost(plan, {.world_size = 4, .count = count}, topology);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.value();
  };
  // Short: 6 messages one after the other against 2. Long: 1.5 times the vector through each link against 2.
  EXPECT_GT(at(ring, 64).total_ns(), 2 * at(tree, 64).total_ns());
  EXPECT_GT(at(tree, 64).total_ns(), 2 * topology.link.latency_ns);
  const size_t count = 4 << 20;
  EXPECT_NEAR(at(ring, count).link_ns, 1.5 * 4 * static_cast<double>(count) / topology.link.bytes_per_ns,
              1e4);
  EXPECT_LT(at(ring, count).total_ns(), at(tree, count).total_ns());
  // Messages alone take the way between hosts, no announcements.
  topology.link.latency_ns = 1e6;
  EXPECT_NEAR(at(tree, 64).total_ns(), 2e6, 1e5);
}

TEST(Cost, RanksThePlansAsTheyAreMeasured) {
  const auto total = [](std::string_view name, int n, uint64_t bytes, int cores) {
    return cost_of(Collective::kAllReduce, name, n, bytes, cores).total_ns();
  };
  EXPECT_LT(total("one_shot", 8, 1024, 2), total("two_shot", 8, 1024, 2)) << "one synchronisation";
  EXPECT_LT(total("direct", 8, 64 << 20, 2), total("two_shot", 8, 64 << 20, 2)) << "fewest bytes";
  EXPECT_LT(total("two_shot", 8, 1 << 20, 8), total("one_shot", 8, 1 << 20, 8)) << "n^2";
  EXPECT_LT(total("direct", 8, 1 << 20, 8), total("ring", 8, 1 << 20, 8));
}

TEST(Cost, RefusesACallOfAnotherGroup) {
  const Plan& plan = *find_plan(Collective::kBarrier, "arrival");
  EXPECT_EQ(cost(plan, {.world_size = 4}, measured_defaults(3, 2)).status().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(cost(plan, {.world_size = 3}, measured_defaults(3, 0)).status().code(),
            ErrorCode::kInvalidArgument);
  Topology uneven = measured_defaults(3, 2);
  uneven.hosts = 2;
  EXPECT_EQ(cost(plan, {.world_size = 3}, uneven).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace collective_ops
