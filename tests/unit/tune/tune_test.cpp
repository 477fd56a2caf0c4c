// The machine's numbers, and what they say about plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstdlib>

#include "tune/explain.h"
#include "tune/probe.h"

namespace collective_ops::tune {
namespace {

TEST(Fit, ALineIsFoundAgain) {
  std::vector<Point> points;
  for (const double bytes : {1e3, 1e4, 1e5, 1e6}) points.push_back({bytes, 50 + bytes / 20});
  const Fit fit = fit_line(points);
  EXPECT_NEAR(fit.start_ns, 50, 1e-6);
  EXPECT_NEAR(fit.bytes_per_ns, 20, 1e-6);
  EXPECT_NEAR(fit.residual, 0, 1e-9);
}

TEST(Fit, WhatIsNoLineHasAResidual) {
  const std::vector<Point> points = {{1000, 100}, {2000, 150}, {3000, 400}};
  EXPECT_GT(fit_line(points).residual, 0.1);
}

TEST(Probe, ItsNumbersCanBe) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE && processors.size() < 2; ++i) {
    if (CPU_ISSET(static_cast<size_t>(i), &set)) processors.push_back(i);
  }
  const auto result = probe(processors, 1 << 20);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Topology& topology = result->topology;
  EXPECT_EQ(topology.cores, static_cast<int>(processors.size()));
  EXPECT_EQ(topology.cache_bytes, uint64_t{1} << 20);
  for (const double value : {topology.copy_bytes_per_ns, topology.reduce_bytes_per_ns,
                             topology.memory_bytes_per_ns, topology.signal_ns, topology.yield_ns}) {
    EXPECT_TRUE(std::isfinite(value) && value > 0) << value;
  }
  EXPECT_FALSE(probe({}, 0).ok());
}

std::vector<Candidate> candidates_of(const Question& question, int ranks = 4) {
  const auto result = explain(question, measured_defaults(ranks, 2));
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : std::vector<Candidate>();
}

std::string chosen_of(const Question& question) {
  for (const Candidate& one : candidates_of(question)) {
    if (one.chosen) return one.name + " " + one.path;
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
    EXPECT_LE(candidates[i - 1].cost.total_ns(), candidates[i].cost.total_ns());
  }
}

TEST(Explain, MemoryAndSizeDecideWhatIsPossible) {
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, true}), "direct direct");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 1 << 20, false}), "two_shot staged");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 8, false}), "one_shot inline");
  EXPECT_EQ(chosen_of({Collective::kAllReduce, DataType::kFloat32, 64, false}), "one_shot staged");
  for (const Candidate& one : candidates_of({Collective::kAllReduce, DataType::kFloat32, 64 << 20, false})) {
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

}  // namespace
}  // namespace collective_ops::tune
