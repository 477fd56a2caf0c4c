// Contents that tell ranks and places apart, and the settings that tests of collectives run under.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace collective_ops {

using Bytes = std::vector<std::byte>;

// Never a null pointer, even of no bytes.
inline Bytes filled(int value, size_t bytes) {
  Bytes result;
  result.reserve(bytes + 1);
  result.assign(bytes, static_cast<std::byte>(value));
  return result;
}

// What rank `source` has for rank `destination`.
inline Bytes pattern(int source, int destination, size_t bytes) {
  Bytes result = filled(0, bytes);
  for (size_t i = 0; i < bytes; ++i) {
    result[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<size_t>(source * 31 + destination * 17));
  }
  return result;
}

inline void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

struct PathSetting {
  int world_size;
  const char* path;
};

class OnEveryPath : public testing::TestWithParam<PathSetting> {
 protected:
  ScopedVariable path_{"COLLECTIVE_OPS_PATH", GetParam().path};
  int n_ = GetParam().world_size;
};

inline const auto kPathSettings = testing::Values(
    PathSetting{1, "auto"}, PathSetting{2, "auto"}, PathSetting{3, "auto"}, PathSetting{4, "auto"},
    PathSetting{7, "auto"}, PathSetting{8, "auto"}, PathSetting{1, "staged"}, PathSetting{2, "staged"},
    PathSetting{3, "staged"}, PathSetting{8, "staged"}, PathSetting{2, "direct"}, PathSetting{3, "direct"},
    PathSetting{8, "direct"});

inline std::string path_name(const testing::TestParamInfo<PathSetting>& info) {
  return std::to_string(info.param.world_size) + "_ranks_" + info.param.path;
}

#define EXPECT_DONE(call)                                   \
  do {                                                      \
    const Status done_status = (call);                      \
    ASSERT_TRUE(done_status.ok()) << done_status.message(); \
  } while (false)

}  // namespace collective_ops
