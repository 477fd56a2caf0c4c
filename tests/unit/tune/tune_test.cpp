// The machine's numbers, and what they say about plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "tune/explain.h"
#include "tune/fit.h"
#include "tune/probe.h"
#include "tune/sweep.h"

namespace collective_ops::tune {
namespace {

// Times that were made up from other numbers lead back to about these.
TEST(Fit, FindsNumbersThatMeetTheTimes) {
  Topology truth = measured_defaults(2, 2);
  truth.signal_ns *= 3;
  truth.load_far_ns *= 2;
  std::vector<Observation> calls;
  for (const std::string name : {"direct", "two_shot", "one_shot", "tree"}) {
    for (const size_t bytes : {size_t{64}, size_t{8192}, size_t{65536}, size_t{1} << 20}) {
      if (name == "one_shot" && bytes > 65536) continue;
      calls.push_back({.ranks = 2, .bytes = bytes, .algorithm = name, .path = "staged", .us = 1});
    }
  }
  const auto first = fit(calls, truth, 0);
  ASSERT_TRUE(first.ok()) << first.status().message();
  for (size_t i = 0; i < calls.size(); ++i) calls[i].us = first->predicted_us[i];
  EXPECT_GT(fit(calls, measured_defaults(2, 2), 0)->median_error, 0.1);
  EXPECT_LT(fit(calls, measured_defaults(2, 2), 12)->median_error, 0.05);
  calls[0].algorithm = "pigeon";
  EXPECT_EQ(fit(calls, truth, 1).status().code(), ErrorCode::kInvalidArgument);
}

TEST(Sweep, TimesEveryCandidateOnBothMemories) {
  const auto points =
      sweep({.collective = Collective::kAllGather, .sizes = {256}, .rounds = 2, .batch_ms = 0.1});
  ASSERT_TRUE(points.ok()) << points.status().message();
  std::set<std::string> seen;
  for (const SweepPoint& one : points.value()) {
    seen.insert(one.algorithm + (one.shared ? " shared" : " private"));
    ASSERT_FALSE(one.us.empty());
    for (const double us : one.us) EXPECT_GT(us, 0) << one.algorithm;
  }
  EXPECT_THAT(seen, testing::IsSupersetOf({"auto shared", "auto private", "one_shot shared", "direct shared",
                                           "staged private", "ring private", "bruck shared"}));
  EXPECT_FALSE(sweep({}).ok());
}

TEST(Probe, ItsNumbersCanBe) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE && processors.size() < 2; ++i) {
    if (CPU_ISSET(static_cast<size_t>(i), &set)) processors.push_back(i);
  }
  const auto result = probe(processors, 1 << 20, 1 << 24);
  if (result.status().code() == ErrorCode::kTimeout) GTEST_SKIP() << result.status().message();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->topology.cores, static_cast<int>(processors.size()));
  EXPECT_EQ(result->topology.cache_bytes, uint64_t{1} << 20);
  for (const TopologyNumber& number : topology_numbers()) {
    const double value = result->topology.*number.value;
    EXPECT_TRUE(std::isfinite(value) && value > 0) << number.name << " " << value;
  }
  EXPECT_GT(result->calls, 40u);
  EXPECT_GT(result->worst_error, result->median_error);
  EXPECT_FALSE(probe({}, 0, 0).ok());
}

std::vector<Explained> candidates_of(const Question& question, int ranks = 4) {
  const auto result = explain(question, measured_defaults(ranks, 2));
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : std::vector<Explained>();
}

std::string chosen_of(const Question& question) {
  for (const Explained& one : candidates_of(question)) {
    if (one.chosen) return one.candidate.name + " " + one.candidate.path;
  }
  return "";
}

TEST(Explain, OneCandidateIsChosenAtEverySize) {
  for (int collective = 0; collective <= static_cast<int>(Collective::kAllToAll); ++collective) {
    for (const bool shared : {true, false}) {
      for (size_t bytes = 16; bytes <= size_t{64} << 20; bytes *= 16) {
        const auto candidates =
            candidates_of({static_cast<Collective>(collective), DataType::kFloat32, bytes, shared});
        const auto chosen =
            std::count_if(candidates.begin(), candidates.end(), [](const auto& one) { return one.chosen; });
        EXPECT_EQ(chosen, 1) << name_of(static_cast<Collective>(collective)) << " " << bytes << " " << shared;
      }
    }
  }
}

TEST(Explain, TheCheapestStandsFirst) {
  const auto candidates = candidates_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, true});
  ASSERT_GE(candidates.size(), 4U);
  for (size_t i = 1; i < candidates.size(); ++i) {
    EXPECT_LE(candidates[i - 1].candidate.cost.total_ns(), candidates[i].candidate.cost.total_ns());
  }
}

TEST(Explain, MemoryAndSizeDecideWhatIsPossible) {
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, true}), "direct direct");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, false}), "two_shot staged");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 8, false}), "one_shot inline");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 64, false}), "one_shot staged");
  for (const auto& [one, chosen] :
       candidates_of({Collective::kAllReduce, DataType::kFloat32, 64 << 20, false})) {
    EXPECT_NE(one.name, "one_shot");  // does not fit
    EXPECT_NE(one.path, "direct");
  }
}

TEST(Explain, AForcedAlgorithmIsTheChoice) {
  setenv("COLLECTIVE_OPS_ALGORITHM", "two_shot", 1);
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, true}), "two_shot staged");
  setenv("COLLECTIVE_OPS_ALGORITHM", "none", 1);
  EXPECT_FALSE(explain({}, measured_defaults(4, 2)).ok());
  unsetenv("COLLECTIVE_OPS_ALGORITHM");
}

TEST(Explain, OverHostsPlansOfMessagesStand) {
  Topology topology = measured_defaults(8, 2);
  topology.hosts = 2;
  for (int collective = 1; collective <= static_cast<int>(Collective::kAllToAll); ++collective) {
    for (const size_t bytes : {size_t{1024}, size_t{4} << 20}) {
      const auto result =
          explain_hosts({static_cast<Collective>(collective), DataType::kFloat32, bytes}, topology);
      ASSERT_TRUE(result.ok()) << result.status().message();
      const auto& list = result.value();
      ASSERT_FALSE(list.empty());
      EXPECT_EQ(std::ranges::count_if(list, [](const Explained& one) { return one.chosen; }), 1);
      for (const auto& [one, chosen] : list) {
        EXPECT_EQ(one.path, "messages");
        EXPECT_GT(one.cost.link_ns, 0) << one.name;
        EXPECT_GT(one.cost.latency_ns, topology.link.latency_ns) << one.name;
      }
    }
  }
  const auto chosen = [&](size_t bytes) {
    const auto list = explain_hosts({Collective::kAllReduce, DataType::kFloat32, bytes}, topology);
    return std::ranges::find_if(list.value(), [](const Explained& one) { return one.chosen; })
        ->candidate.name;
  };
  EXPECT_EQ(chosen(1024), "recursive_doubling");
  EXPECT_EQ(chosen(1 << 20), "pieces");
  setenv("HCCL_ALGO", "level0:NA;level1:H-D_R", 1);
  EXPECT_EQ(chosen(1 << 20), "halving_doubling");
  setenv("HCCL_ALGO", "level0:NA;level1:ring", 1);
  EXPECT_EQ(chosen(1024), "ring");
  unsetenv("HCCL_ALGO");
  topology.hosts = 3;
  EXPECT_EQ(explain_hosts({}, topology).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace collective_ops::tune
