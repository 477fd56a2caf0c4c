#include "analysis/intervals.h"

#include <array>
#include <random>

#include <gtest/gtest.h>

namespace collective_ops {
namespace {

constexpr int kTicks = 120;
using Ticks = std::array<bool, kTicks>;

Ticks ticks_of(const std::vector<Interval>& intervals) {
  Ticks ticks{};
  for (const Interval& interval : intervals) {
    for (int64_t t = interval.begin; t < interval.end; ++t) ticks[static_cast<size_t>(t)] = true;
  }
  return ticks;
}

template <typename Combine>
Ticks combined(const Ticks& a, const Ticks& b, Combine combine) {
  Ticks result{};
  for (size_t i = 0; i < result.size(); ++i) result[i] = combine(a[i], b[i]);
  return result;
}

bool is_canonical(const IntervalSet& set) {
  for (size_t i = 0; i < set.size(); ++i) {
    if (set[i].end <= set[i].begin) return false;
    if (i > 0 && set[i].begin <= set[i - 1].end) return false;
  }
  return true;
}

TEST(Intervals, AgreeWithCountingTicks) {
  std::mt19937 random(7);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  for (int round = 0; round < 3000; ++round) {
    std::array<std::vector<Interval>, 2> raw;
    for (auto& intervals : raw) {
      for (int i = draw(12); i > 0; --i) {
        const int begin = draw(kTicks - 20);
        intervals.push_back({begin, begin + draw(20)});  // empty ones too
      }
    }
    const IntervalSet a = united(raw[0]), b = united(raw[1]);
    const Ticks x = ticks_of(raw[0]), y = ticks_of(raw[1]);
    ASSERT_TRUE(is_canonical(a));
    ASSERT_EQ(ticks_of(a), x);
    ASSERT_EQ(ticks_of(united(a, b)), combined(x, y, [](bool p, bool q) { return p || q; }));
    ASSERT_TRUE(is_canonical(united(a, b)));
    ASSERT_EQ(ticks_of(intersection(a, b)), combined(x, y, [](bool p, bool q) { return p && q; }));
    ASSERT_EQ(ticks_of(difference(a, b)), combined(x, y, [](bool p, bool q) { return p && !q; }));
    ASSERT_EQ(length_of(a), length_of(difference(a, b)) + length_of(intersection(a, b)));
  }
}

}  // namespace
}  // namespace collective_ops
