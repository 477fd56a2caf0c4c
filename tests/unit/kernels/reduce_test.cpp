// Every type, operation, number of sources and destinations, and length, on every instruction set that this
// processor has, against the scalar oracle.
#include "kernels/reduce.h"

#include <cstring>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/targets.h"
#include "oracle.h"

namespace collective_ops {
namespace {

using testing::Bytes;

constexpr size_t kMargin = 128;  // bytes before and after a buffer that must stay as they are
constexpr unsigned char kCanary = 0xA5;

// A buffer at a chosen distance from a cache line, between canaries.
class Guarded {
 public:
  Guarded(const Bytes& content, size_t misalignment)
      : size_(content.size()), store_(size_ + 3 * kMargin, kCanary) {
    const auto address = reinterpret_cast<uintptr_t>(store_.data()) + kMargin;
    begin_ = (kMargin + (64 - address % 64) % 64) + misalignment;
    if (size_ != 0) std::memcpy(data(), content.data(), size_);
  }
  unsigned char* data() { return store_.data() + begin_; }
  Bytes content() const { return Bytes(store_.begin() + begin_, store_.begin() + begin_ + size_); }
  bool margins_intact() const {
    for (size_t i = 0; i < store_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && store_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  size_t size_, begin_ = 0;
  Bytes store_;
};

enum class Destinations { kOne, kAll, kInPlace, kOneInPlace };

struct Case {
  DataType type;
  ReduceOp op;
  size_t source_count, count, misalignment;
  Destinations destinations;
  bool special = false;
  int divisor = 3;

  std::string name() const {
    return fmt::format(
        "{} {}: {} sources, {} elements, destinations {}, {} bytes off a cache line, divisor {}",
        name_of(type), name_of(op), source_count, count, static_cast<int>(destinations), misalignment,
        divisor);
  }
};

void check(const Case& c) {
  SCOPED_TRACE(c.name());
  std::vector<Bytes> inputs;
  std::vector<double> factors;
  for (size_t s = 0; s < c.source_count; ++s) {
    inputs.push_back(testing::random_elements(c.type, c.count, 1000 * c.count + s, c.special));
    factors.push_back(0.3 - 0.7 * static_cast<double>(s));
  }
  const Bytes expected = testing::oracle_reduce(c.type, c.op, inputs, c.count, c.divisor, factors);

  std::vector<Guarded> sources, results;
  for (size_t s = 0; s < c.source_count; ++s)
    sources.emplace_back(inputs[s], (c.misalignment * (s + 1)) % 64);
  const bool in_place =
      c.destinations == Destinations::kInPlace || c.destinations == Destinations::kOneInPlace;
  const bool one = c.destinations == Destinations::kOne || c.destinations == Destinations::kOneInPlace;
  const size_t destination_count = one ? 1 : c.source_count;
  const Bytes stale(expected.size(), 0xEE);
  for (size_t d = 0; d < destination_count && !in_place; ++d)
    results.emplace_back(stale, (c.misalignment * (d + 3)) % 64);

  std::vector<const void*> source_pointers;
  std::vector<void*> destination_pointers;
  for (Guarded& source : sources) source_pointers.push_back(source.data());
  std::vector<Guarded>& written = in_place ? sources : results;
  for (size_t d = 0; d < destination_count; ++d) destination_pointers.push_back(written[d].data());

  const ReduceKernel kernel = reduce_kernel(c.type, c.op);
  ASSERT_NE(kernel, nullptr);
  kernel({destination_pointers, source_pointers, c.count, c.divisor, factors.data()});

  for (size_t d = 0; d < destination_count; ++d) {
    ASSERT_EQ(testing::difference(c.type, written[d].data(), expected), "") << "destination " << d;
  }
  for (Guarded& guarded : results) ASSERT_TRUE(guarded.margins_intact());
  for (Guarded& guarded : sources) ASSERT_TRUE(guarded.margins_intact());
  for (size_t s = in_place ? destination_count : 0; s < c.source_count; ++s) {
    ASSERT_EQ(sources[s].content(), inputs[s]) << "source " << s << " was changed";
  }
}

std::vector<DataType> reducible_types() {
  std::vector<DataType> types;
  for (int t = 0; t < kDataTypeCount; ++t) {
    if (is_reducible(static_cast<DataType>(t), ReduceOp::kSum)) types.push_back(static_cast<DataType>(t));
  }
  return types;
}

class ReduceKernels : public ::testing::TestWithParam<std::tuple<std::string_view, DataType>> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_kernel_target(std::get<0>(GetParam()))); }
  void TearDown() override { force_kernel_target(""); }

  static DataType type() { return std::get<1>(GetParam()); }

  template <typename Body>
  static void for_each_op(Body body) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      if (is_reducible(type(), static_cast<ReduceOp>(o))) body(static_cast<ReduceOp>(o));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
};

TEST_P(ReduceKernels, AgreeWithTheOracle) {
  const size_t misalignment = size_of(type()) > 4 ? 4 : size_of(type());
  for_each_op([&](ReduceOp op) {
    for (const size_t sources : {1, 2, 3, 4, 7, 8, 16}) {
      for (const size_t count : {0, 1, 3, 15, 16, 17, 31, 64, 100, 1000}) {
        for (const size_t off : {size_t{0}, misalignment, size_t{1}}) {
          for (const auto destinations :
               {Destinations::kOne, Destinations::kAll, Destinations::kInPlace, Destinations::kOneInPlace}) {
            check({type(), op, sources, count, off, destinations});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

// Every tail length up to past the largest step of 256 bytes.
TEST_P(ReduceKernels, EveryLengthTouchesExactlyItsElements) {
  for_each_op([&](ReduceOp op) {
    for (size_t count = 0; count <= 300 / size_of(type()); ++count) {
      check({type(), op, 2, count, size_of(type()), Destinations::kInPlace});
      check({type(), op, 3, count, size_of(type()), Destinations::kAll});
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(ReduceKernels, CarryNanInfinityAndExtremes) {
  for_each_op([&](ReduceOp op) {
    for (const size_t sources : {1, 2, 3, 8}) {
      for (const auto destinations : {Destinations::kOne, Destinations::kInPlace}) {
        check({type(), op, sources, 4099, 0, destinations, true});
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(ReduceKernels, AverageDividesByWhatItIsTold) {
  if (!is_reducible(type(), ReduceOp::kAvg)) GTEST_SKIP() << "has no average";
  for (const int divisor : {1, 2, 3, 7, 8, 64, 1000}) {
    check({type(), ReduceOp::kAvg, 2, 777, 0, Destinations::kInPlace, false, divisor});
    check({type(), ReduceOp::kAvg, 3, 777, 0, Destinations::kOne, true, divisor});
    if (HasFatalFailure()) return;
  }
}

// A collective cuts buffers at any element: the bits must be those of one call.
TEST_P(ReduceKernels, DoNotDependOnChunks) {
  constexpr size_t kCount = 1031, kSources = 3;
  const size_t width = size_of(type());
  std::vector<Bytes> inputs;
  const std::vector<double> factors = {0.1, -1.7, 3.3};
  for (size_t s = 0; s < kSources; ++s) inputs.push_back(testing::random_elements(type(), kCount, s, false));
  for_each_op([&](ReduceOp op) {
    const ReduceKernel kernel = reduce_kernel(type(), op);
    Bytes whole(kCount * width), pieces(kCount * width);
    const auto run = [&](Bytes& result, size_t begin, size_t count) {
      std::vector<const void*> sources;
      for (const Bytes& input : inputs) sources.push_back(input.data() + begin * width);
      void* destination = result.data() + begin * width;
      kernel({{&destination, 1}, sources, count, 3, factors.data()});
    };
    run(whole, 0, kCount);
    for (size_t begin = 0, length = 1; begin < kCount; begin += length, length = (length * 5 + 2) % 97 + 1) {
      run(pieces, begin, std::min(length, kCount - begin));
    }
    ASSERT_EQ(whole, pieces) << name_of(op);
  });
}

INSTANTIATE_TEST_SUITE_P(Targets, ReduceKernels,
                         ::testing::Combine(::testing::ValuesIn(supported_kernel_targets()),
                                            ::testing::ValuesIn(reducible_types())),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param),
                                              name_of(std::get<1>(test.param)));
                         });

TEST(ReduceKernel, ExistsExactlyWhereTheTypeCanBeReduced) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto type = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      EXPECT_EQ(reduce_kernel(type, op) != nullptr, is_reducible(type, op))
          << name_of(type) << " " << name_of(op);
    }
  }
}

TEST(ReduceKernel, WithoutSourcesWritesNothing) {
  for (const auto type : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt32}) {
    uint64_t untouched = 42;
    void* destination = &untouched;
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg})
      reduce_kernel(type, op)({{&destination, 1}, {}, 1});
    EXPECT_EQ(untouched, 42U);
  }
}

TEST(KernelTarget, CanBeForcedAndReturned) {
  const auto targets = supported_kernel_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(kernel_target(), targets.front());
  for (const std::string_view name : targets) {
    EXPECT_TRUE(force_kernel_target(name));
    EXPECT_EQ(kernel_target(), name);
  }
  EXPECT_FALSE(force_kernel_target("no such set"));
  EXPECT_EQ(supported_kernel_targets(), targets);
  EXPECT_EQ(kernel_target(), targets.back());
  EXPECT_TRUE(force_kernel_target(""));
  EXPECT_EQ(kernel_target(), targets.front());
}

}  // namespace
}  // namespace collective_ops
