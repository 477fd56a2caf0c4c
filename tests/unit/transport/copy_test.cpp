#include "transport/shm/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace collective_ops::shm {
namespace {

using Copy = void (*)(void*, const void*, size_t);

// All of the bytes, none beside them, wherever they begin and end.
class Copies : public testing::TestWithParam<Copy> {};

TEST_P(Copies, ExactlyTheBytesAskedFor) {
  const size_t sizes[] = {0, 1, 63, 64, 767, 768, 2112, 2113, 4095, 4096, 4097, 4160, 100'001};
  for (const size_t bytes : sizes) {
    for (const size_t to : {0, 1, 31, 63}) {
      for (const size_t from : {0, 1, 16, 40}) {
        std::vector<unsigned char> source(bytes + 128), destination(bytes + 256, 0xee);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 251);
        GetParam()(destination.data() + 64 + to, source.data() + from, bytes);
        for (size_t i = 0; i < destination.size(); ++i) {
          const bool inside = i >= 64 + to && i < 64 + to + bytes;
          ASSERT_EQ(destination[i], inside ? source[i - 64 - to + from] : 0xee)
              << bytes << " bytes, to " << to << ", from " << from << ", at " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Copies, testing::Values(copy_across, copy_away),
                         [](const auto& copy) { return copy.param == copy_across ? "across" : "away"; });

}  // namespace
}  // namespace collective_ops::shm
