#include "transport/shm/pause.h"

#include <gtest/gtest.h>

namespace collective_ops::shm {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kMs = 1'000'000;

TEST(HostsPace, ShortYieldsAreNoCrowd) {
  HostsPace pace;
  int64_t now = kMs;
  for (int i = 0; i < 100; ++i, now += 5 * kUs) {
    EXPECT_FALSE(pace.note_yield(now, now + 5 * kUs));
    EXPECT_FALSE(pace.crowded(now + 5 * kUs));
  }
}

TEST(HostsPace, AStrangersSliceIsRememberedLong) {
  HostsPace pace;
  EXPECT_TRUE(pace.note_yield(0, 3 * kMs));
  EXPECT_TRUE(pace.crowded(3 * kMs + 500 * kMs));
  EXPECT_FALSE(pace.crowded(3 * kMs + 2'000 * kMs));  // asked anew
}

TEST(HostsPace, RanksThatTakeTurnsAreAskedSoonAndThenLessOften) {
  HostsPace pace;
  const auto memory_after_yield = [&](int64_t now) {
    EXPECT_TRUE(pace.note_yield(now - 50 * kUs, now));
    int64_t passed = 0;
    while (pace.crowded(now + passed)) passed += 100 * kUs;
    return passed;
  };
  const int64_t first = memory_after_yield(1'000 * kMs), second = memory_after_yield(2'000 * kMs);
  EXPECT_LE(first, 5 * kMs);
  EXPECT_GT(second, first);
  int64_t last = second;
  for (int i = 3; i < 20; ++i) last = memory_after_yield(i * 1'000 * kMs);
  EXPECT_LE(last, 50 * kMs);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(pace.note_yield(30'000 * kMs, 30'000 * kMs + kUs));
  EXPECT_EQ(memory_after_yield(40'000 * kMs), first);
}

}  // namespace
}  // namespace collective_ops::shm
