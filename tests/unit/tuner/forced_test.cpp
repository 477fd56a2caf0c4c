// HCCL_ALGO, NCCL_ALGO and HCCL_DETERMINISTIC: what they force, and what they never break.
#include "tuner/forced.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include <collective_ops/communicator.h>

#include "tuner/choose.h"

namespace collective_ops {
namespace {

std::string of(const AlgorithmNames& names, Collective collective) {
  return names[static_cast<size_t>(collective)];
}

class Forcing : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"HCCL_ALGO", "NCCL_ALGO", "HCCL_DETERMINISTIC", "COLLECTIVE_OPS_ALGORITHM",
                             "COLLECTIVE_OPS_TUNING_TABLE", "COLLECTIVE_OPS_TUNER_PLUGIN"})
      unsetenv(name);
  }
  static void set(const char* name, const char* text) { setenv(name, text, 1); }
  static std::string plan_of(Collective collective, size_t bytes) {
    const auto forced = forced_by_environment();
    EXPECT_TRUE(forced.ok()) << forced.status().message();
    const PlanNames names = choose({collective, bytes, 4, 4}, forced.value());
    return std::string(!names.eager.empty()    ? names.eager
                       : !names.direct.empty() ? names.direct
                                               : names.staged);
  }
};

TEST_F(Forcing, HcclNamesOneForAllOrForEach) {
  const AlgorithmNames all = algorithms_of_hccl("level0:NA;level1:ring;level2:NHR");
  EXPECT_EQ(of(all, Collective::kAllReduce), "ring");
  EXPECT_EQ(of(all, Collective::kAllToAll), "ring");  // which has none, so it counts for nothing
  const AlgorithmNames some =
      algorithms_of_hccl("allreduce=level0:NA;level1:Ring/allgather=level0:NA;level1:NHR");
  EXPECT_EQ(of(some, Collective::kAllReduce), "ring");
  EXPECT_EQ(of(some, Collective::kAllGather), "nhr");
  EXPECT_EQ(of(some, Collective::kBroadcast), "");
  const AlgorithmNames others =
      algorithms_of_hccl("allreduce=level1:H-D_R/alltoall=level1:pairwise/allgather=level1:NB");
  EXPECT_EQ(of(others, Collective::kAllReduce), "halving_doubling");
  EXPECT_EQ(of(others, Collective::kAllToAll), "pairwise");
  EXPECT_EQ(of(others, Collective::kAllGather), "bruck");
}

TEST_F(Forcing, NcclNamesOneForAllOrForEach) {
  EXPECT_EQ(of(algorithms_of_nccl("Ring"), Collective::kReduceScatter), "ring");
  EXPECT_EQ(of(algorithms_of_nccl("NVLS,Tree,Ring"), Collective::kAllReduce), "tree");
  EXPECT_EQ(of(algorithms_of_nccl("PAT"), Collective::kReduceScatter), "nhr");
  const AlgorithmNames some = algorithms_of_nccl("allreduce:tree,ring;broadcast:ring");
  EXPECT_EQ(of(some, Collective::kAllReduce), "tree");
  EXPECT_EQ(of(some, Collective::kBroadcast), "ring");
  EXPECT_EQ(of(some, Collective::kAllGather), "");
  EXPECT_EQ(of(algorithms_of_nccl("^Tree"), Collective::kAllReduce), "");
}

TEST_F(Forcing, WhatIsNotUnderstoodCountsForNothing) {
  for (const char* text : {"", ";;;", "///", "=", ":", "level1", "allreduce=", "level1:AHC", "ring"}) {
    EXPECT_THAT(algorithms_of_hccl(text), testing::Each("")) << text;
  }
  for (const char* text : {"", ";;", ":,", "CollNetDirect", "allreduce:"}) {
    EXPECT_THAT(algorithms_of_nccl(text), testing::Each("")) << text;
  }
}

TEST_F(Forcing, HcclBeatsNcclAndOursBeatsBoth) {
  set("NCCL_ALGO", "Tree");
  EXPECT_EQ(plan_of(Collective::kAllReduce, 65536), "tree");
  set("HCCL_ALGO", "level0:NA;level1:ring");
  EXPECT_EQ(plan_of(Collective::kAllReduce, 65536), "ring");
  set("COLLECTIVE_OPS_ALGORITHM", "two_shot");
  EXPECT_EQ(plan_of(Collective::kAllReduce, 65536), "two_shot");
}

TEST_F(Forcing, WhereThereIsNoSuchPlanOrNoRoomItIsChosenAsEver) {
  set("NCCL_ALGO", "Ring");
  EXPECT_EQ(plan_of(Collective::kAllToAll, 65536), "direct");
  EXPECT_EQ(plan_of(Collective::kAllReduce, size_t{64} << 20), "direct");
  EXPECT_EQ(plan_of(Collective::kBarrier, 0), "arrival");
}

TEST_F(Forcing, StrictKeepsTheOrderOfRanks) {
  set("NCCL_ALGO", "Ring");
  for (const char* text : {"false", "true"}) {
    set("HCCL_DETERMINISTIC", text);
    EXPECT_EQ(plan_of(Collective::kAllReduce, 128 << 10), "ring") << text;
  }
  set("HCCL_DETERMINISTIC", "STRICT");
  EXPECT_EQ(plan_of(Collective::kAllReduce, 128 << 10), "direct");
  EXPECT_EQ(plan_of(Collective::kAllGather, 65536), "ring");  // which combines nothing
}

// The path is forced, not which of its plans.
TEST_F(Forcing, TheDirectPathKeepsThePlanThatTheTableHasForIt) {
  Forced forced;
  forced.path = PathChoice::kDirect;
  const auto direct = [&](size_t bytes) { return choose({Collective::kReduce, bytes, 4, 4}, forced).direct; };
  EXPECT_EQ(direct(64), "direct");
  EXPECT_EQ(direct(64 << 10), "pull");
  EXPECT_EQ(direct(1 << 20), "direct");
}

TEST_F(Forcing, RanksThatDifferInAnyOfItNoticeIt) {
  std::vector<std::string> texts = {forced_by_environment()->text()};
  for (const auto& [name, text] :
       {std::pair("NCCL_ALGO", "Tree"), std::pair("HCCL_ALGO", "level1:ring"),
        std::pair("HCCL_DETERMINISTIC", "strict"), std::pair("COLLECTIVE_OPS_ALGORITHM", "two_shot")}) {
    set(name, text);
    texts.push_back(forced_by_environment()->text());
  }
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end()) << testing::PrintToString(texts);
}

// All sizes around the limit work, whichever way they take, with parts of every rank's own size.
TEST_F(Forcing, ForcedCallsAreRightAtEverySize) {
  constexpr int kRanks = 3;
  set("NCCL_ALGO", "Ring");
  for (const size_t count :
       {size_t{1}, size_t{5}, size_t{1000}, size_t{100'003}, size_t{400'001}, size_t{3'000'001}}) {
    auto comms = Communicator::create_for_threads(kRanks);
    ASSERT_TRUE(comms.ok()) << comms.status().message();
    std::vector<std::string> results(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> data(count, static_cast<float>(rank + 1));
        Communicator& comm = *(*comms)[static_cast<size_t>(rank)];
        const Status status =
            comm.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
        const auto right = std::count(data.begin(), data.end(), 6.0F);
        results[static_cast<size_t>(rank)] =
            status.ok() ? std::to_string(right) : std::string(status.message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(results, testing::Each(std::to_string(count)));
  }
}

}  // namespace
}  // namespace collective_ops
