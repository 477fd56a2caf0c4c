#include "kernels/convert.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "oracle.h"

namespace collective_ops {
namespace {

bool same_float(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(Convert, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    ASSERT_TRUE(same_float(float_from_float16(bits), testing::oracle_float_from_float16(bits)))
        << std::hex << i;
    ASSERT_TRUE(same_float(float_from_bfloat16(bits), testing::oracle_float_from_bfloat16(bits)))
        << std::hex << i;
    const bool float16_nan = (bits & 0x7FFF) > 0x7C00;
    const bool bfloat16_nan = (bits & 0x7FFF) > 0x7F80;
    ASSERT_TRUE(float16_nan || float16_from_float(float_from_float16(bits)) == bits) << std::hex << i;
    ASSERT_TRUE(bfloat16_nan || bfloat16_from_float(float_from_bfloat16(bits)) == bits) << std::hex << i;
  }
}

void check_narrowing(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(float_from_float16(float16_from_float(value)))) << std::hex << bits;
    ASSERT_TRUE(std::isnan(float_from_bfloat16(bfloat16_from_float(value)))) << std::hex << bits;
    return;
  }
  ASSERT_EQ(float16_from_float(value), testing::oracle_float16_from_float(value)) << std::hex << bits;
  ASSERT_EQ(bfloat16_from_float(value), testing::oracle_bfloat16_from_float(value)) << std::hex << bits;
}

// Around every value of either half type and around what lies halfway to the next.
TEST(Convert, NarrowingRoundsToNearestEven) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint32_t wide[] = {i << 16, (i << 16) | 0x8000,
                             std::bit_cast<uint32_t>(float_from_float16(static_cast<uint16_t>(i)))};
    for (const uint32_t center : {wide[0], wide[1], wide[2], wide[2] + 0x1000, wide[2] + 0x800}) {
      for (const uint32_t bits : {center - 1, center, center + 1}) check_narrowing(bits);
    }
    if (HasFatalFailure()) return;
  }
}

TEST(Convert, NarrowingOfAnyBits) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000 && !HasFatalFailure(); ++i) check_narrowing(static_cast<uint32_t>(random()));
}

TEST(Convert, KnownValues) {
  EXPECT_EQ(float16_from_float(65519.996F), 0x7BFF);
  EXPECT_EQ(float16_from_float(65520.0F), 0x7C00);
  EXPECT_EQ(float16_from_float(0x1p-25F), 0x0000);
  EXPECT_EQ(float16_from_float(0x1.000002p-25F), 0x0001);
  EXPECT_EQ(float16_from_float(0x1.8p-24F), 0x0002);
  EXPECT_EQ(bfloat16_from_float(1.00390625F), 0x3F80);  // halfway, the lower is even
  EXPECT_EQ(bfloat16_from_float(1.01171875F), 0x3F82);  // halfway, the upper is even
  EXPECT_EQ(bfloat16_from_float(3.4e38F), 0x7F80);
}

}  // namespace
}  // namespace collective_ops
