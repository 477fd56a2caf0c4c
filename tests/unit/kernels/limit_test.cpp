#include "kernels/limit.h"

#include <gtest/gtest.h>

namespace collective_ops {
namespace {

TEST(Limit, MeasuresEveryKindOfMemory) {
  for (const auto memory : {LimitMemory::kAnonymous, LimitMemory::kShared}) {
    for (const auto type : {DataType::kFloat32, DataType::kBFloat16}) {
      const LimitOptions options = {.type = type, .memory = memory, .seconds_budget = 0.01};
      const auto time = measure_inplace_reduce(3, 10'000, 2, options);
      ASSERT_TRUE(time.ok()) << time.status().message();
      EXPECT_GT(time.value().best, 0);
      EXPECT_GE(time.value().median, time.value().best);
    }
  }
  EXPECT_GT(inplace_reduce_seconds(2, 4096, 1), 0);
}

// Fewer cache lines than threads: some have nothing to do.
TEST(Limit, MeasuresBuffersSmallerThanTheThreads) {
  EXPECT_TRUE(measure_inplace_reduce(2, 4, 3, {.seconds_budget = 0.01}).ok());
}

TEST(Limit, RefusesWhatCannotBeMeasured) {
  for (const auto& [ranks, bytes, threads] : {std::tuple{0, size_t{64}, 1},
                                              {2, size_t{0}, 1},
                                              {2, size_t{64}, 0},
                                              {2, size_t{3}, 1},
                                              {2, SIZE_MAX, 1}}) {
    const auto time = measure_inplace_reduce(ranks, bytes, threads);
    ASSERT_FALSE(time.ok());
    EXPECT_EQ(time.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(inplace_reduce_seconds(ranks, bytes, threads), 0);
  }
  EXPECT_FALSE(measure_inplace_reduce(2, 64, 1, {.type = DataType::kFloat8E4M3}).ok());
}

}  // namespace
}  // namespace collective_ops
