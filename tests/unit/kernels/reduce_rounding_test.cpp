// Rounding of the half types, for all 65536 values, and hand-computed cases that need no oracle.
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/convert.h"
#include "kernels/reduce.h"
#include "kernels/targets.h"
#include "oracle.h"

namespace collective_ops {
namespace {

using testing::Bytes;

template <typename T>
std::vector<T> reduced(DataType type, ReduceOp op, std::vector<std::vector<T>> inputs, int divisor = 1,
                       std::vector<double> factors = {}) {
  std::vector<T> result(inputs[0].size());
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  void* destination = result.data();
  reduce_kernel(type, op)(
      {{&destination, 1}, sources, result.size() * sizeof(T) / size_of(type), divisor, factors.data()});
  return result;
}

Bytes bytes_of(const std::vector<uint16_t>& values) {
  const auto* begin = reinterpret_cast<const unsigned char*>(values.data());
  return Bytes(begin, begin + 2 * values.size());
}

class Rounding : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_kernel_target(GetParam())); }
  void TearDown() override { force_kernel_target(""); }

  static std::vector<uint16_t> all_halves() {
    std::vector<uint16_t> all(65536);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  static void check_all(DataType type, const std::vector<uint16_t>& partners) {
    const auto all = all_halves();
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      for (const uint16_t partner : partners) {
        for (const bool partner_first : {false, true}) {
          std::vector<std::vector<uint16_t>> inputs = {all, std::vector<uint16_t>(65536, partner)};
          if (partner_first) std::swap(inputs[0], inputs[1]);
          const auto actual = reduced(type, op, inputs, 3);
          const Bytes expected =
              testing::oracle_reduce(type, op, {bytes_of(inputs[0]), bytes_of(inputs[1])}, 65536, 3, {});
          ASSERT_EQ(testing::difference(type, bytes_of(actual).data(), expected), "")
              << name_of(op) << " with " << fmt::format("{:04x}", partner) << (partner_first ? " first" : "");
        }
      }
    }
  }
};

TEST_P(Rounding, EveryBFloat16WithAFewPartners) {
  // 0, -0, 1, next above 1, -1, 1/3, smallest and largest subnormal, largest, infinities, NaNs (one
  // signalling).
  check_all(DataType::kBFloat16, {0x0000, 0x8000, 0x3F80, 0x3F81, 0xBF80, 0x3EAB, 0x0001, 0x007F, 0x7F7F,
                                  0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF});
}

TEST_P(Rounding, EveryFloat16WithAFewPartners) {
  check_all(DataType::kFloat16, {0x0000, 0x8000, 0x3C00, 0x3C01, 0xBC00, 0x3555, 0x0001, 0x03FF, 0x7BFF,
                                 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF});
}

TEST_P(Rounding, OneSourceIsKeptAsItIs) {
  for (const auto type : {DataType::kBFloat16, DataType::kFloat16}) {
    const auto all = all_halves();
    const auto actual = reduced<uint16_t>(type, ReduceOp::kSum, {all});
    ASSERT_EQ(testing::difference(type, bytes_of(actual).data(), bytes_of(all)), "");
  }
}

// Every result between two bfloat16 numbers, and halfway between, on both sides of every binade: a third
// source makes lower halves that two alone cannot.
TEST_P(Rounding, BFloat16SumsOfThreeAreRoundedOnce) {
  const auto all = all_halves();
  std::vector<uint16_t> second(65536), third(65536);
  for (size_t i = 0; i < 65536; ++i) {
    const float value = testing::oracle_float_from_bfloat16(all[i]);
    second[i] = testing::oracle_bfloat16_from_float(value * 0x1p-8F);
    third[i] = testing::oracle_bfloat16_from_float(value * (i % 3 == 0 ? 0x1p-15F : -0x1p-15F));
  }
  const auto actual = reduced<uint16_t>(DataType::kBFloat16, ReduceOp::kSum, {all, second, third});
  const Bytes expected = testing::oracle_reduce(
      DataType::kBFloat16, ReduceOp::kSum, {bytes_of(all), bytes_of(second), bytes_of(third)}, 65536, 1, {});
  EXPECT_EQ(testing::difference(DataType::kBFloat16, bytes_of(actual).data(), expected), "");
}

TEST_P(Rounding, HalfTypesAreSummedInFloat32) {
  // 256 + 1 is no bfloat16: summed in bfloat16 the ones would vanish.
  const std::vector<std::vector<uint16_t>> bfloat16(9, {0x3F80});
  auto inputs = bfloat16;
  inputs[0] = {bfloat16_from_float(256)};
  EXPECT_EQ(reduced<uint16_t>(DataType::kBFloat16, ReduceOp::kSum, inputs)[0], bfloat16_from_float(264));
  std::vector<std::vector<uint16_t>> float16(5, {float16_from_float(1)});
  float16[0] = {float16_from_float(2048)};
  EXPECT_EQ(reduced<uint16_t>(DataType::kFloat16, ReduceOp::kSum, float16)[0], float16_from_float(2052));
  // The sum overflows float16, its average does not.
  EXPECT_EQ(reduced<uint16_t>(DataType::kFloat16, ReduceOp::kAvg, {{0x7BFF}, {0x7BFF}}, 2)[0], 0x7BFF);
  EXPECT_EQ(reduced<uint16_t>(DataType::kFloat16, ReduceOp::kSum, {{0x7BFF}, {0x7BFF}})[0], 0x7C00);
}

TEST_P(Rounding, SourcesAreAddedInTheOrderGiven) {
  const float big = 1e8F;
  EXPECT_EQ(reduced<float>(DataType::kFloat32, ReduceOp::kSum, {{big}, {1}, {-big}})[0], 0);
  EXPECT_EQ(reduced<float>(DataType::kFloat32, ReduceOp::kSum, {{big}, {-big}, {1}})[0], 1);
}

TEST_P(Rounding, PreMultipliedTermsAreRoundedBeforeTheyAreAdded) {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: a fused multiply-add would keep the last term.
  const float x = 1 + 0x1p-12F;
  for (const size_t count : {1, 5, 64, 67}) {
    const auto actual =
        reduced<float>(DataType::kFloat32, ReduceOp::kPreMulSum,
                       {std::vector<float>(count, -1), std::vector<float>(count, x)}, 1, {1.0, x});
    EXPECT_EQ(actual, std::vector<float>(count, 0x1p-11F));
  }
}

TEST_P(Rounding, NanFactorsStayNan) {
  // All bits of the payload set: rounding such a NaN upwards would carry into the sign.
  const double factor = std::bit_cast<double>(UINT64_C(0x7FFFFFFFFFFFFFFF));
  for (const auto type : {DataType::kBFloat16, DataType::kFloat16}) {
    const auto actual =
        reduced<uint16_t>(type, ReduceOp::kPreMulSum, {std::vector<uint16_t>(70, 0x3C00)}, 1, {factor});
    for (const uint16_t bits : actual) {
      EXPECT_TRUE(
          std::isnan(type == DataType::kBFloat16 ? float_from_bfloat16(bits) : float_from_float16(bits)));
    }
  }
}

TEST_P(Rounding, IntegerAveragesAre64BitAndTruncated) {
  using testing::Bytes;
  EXPECT_EQ((reduced<int8_t>(DataType::kInt8, ReduceOp::kAvg, {{127, -128, -3, 3}, {127, -128, -4, 4}}, 2)),
            (std::vector<int8_t>{127, -128, -3, 3}));
  EXPECT_EQ((reduced<int32_t>(DataType::kInt32, ReduceOp::kAvg, {{INT32_MAX, -1}, {INT32_MAX, 0}}, 2)),
            (std::vector<int32_t>{INT32_MAX, 0}));
  EXPECT_EQ((reduced<uint64_t>(DataType::kUInt64, ReduceOp::kAvg, {{UINT64_MAX}, {0}}, 2)),
            (std::vector<uint64_t>{UINT64_MAX / 2}));
  EXPECT_EQ((reduced<uint8_t>(DataType::kUInt8, ReduceOp::kAvg, {{255}, {255}, {255}}, 3)),
            (std::vector<uint8_t>{255}));
}

TEST_P(Rounding, ComplexProductsAndAverages) {
  EXPECT_EQ((reduced<float>(DataType::kComplex64, ReduceOp::kProd, {{1, 2, 0, 1}, {3, -1, 0, 1}})),
            (std::vector<float>{5, 5, -1, 0}));
  EXPECT_EQ((reduced<double>(DataType::kComplex128, ReduceOp::kAvg, {{1, 2}, {3, -6}}, 2)),
            (std::vector<double>{2, -2}));
}

TEST_P(Rounding, BoolsAreOrAndAnd) {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    EXPECT_EQ(reduced(DataType::kBool, op, inputs), (std::vector<uint8_t>{0, 1, 1, 1}));
  }
  for (const auto op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    EXPECT_EQ(reduced(DataType::kBool, op, inputs), (std::vector<uint8_t>{0, 0, 0, 1}));
  }
  EXPECT_EQ(reduced(DataType::kBool, ReduceOp::kBitXor, inputs), (std::vector<uint8_t>{0, 1, 1, 0}));
  // Bytes other than 0 and 1 count as true.
  EXPECT_EQ((reduced<uint8_t>(DataType::kBool, ReduceOp::kProd, {{1}, {2}})), (std::vector<uint8_t>{1}));
  EXPECT_EQ((reduced<uint8_t>(DataType::kBool, ReduceOp::kSum, {{4}, {2}})), (std::vector<uint8_t>{1}));
}

TEST_P(Rounding, MinAndMaxCarryNanFromAnySource) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (size_t where = 0; where < 4; ++where) {
      std::vector<std::vector<float>> inputs(4, std::vector<float>(19, 1));
      inputs[where].assign(19, nan);
      for (const float value : reduced(DataType::kFloat32, op, inputs))
        EXPECT_TRUE(std::isnan(value)) << where;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Rounding, ::testing::ValuesIn(supported_kernel_targets()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace collective_ops
