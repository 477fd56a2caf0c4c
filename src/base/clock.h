// Monotonic nanoseconds, comparable between the processes of one host.
#pragma once

#include <cstdint>

namespace collective_ops {

int64_t monotonic_ns();  // CLOCK_MONOTONIC
int64_t real_ns();       // CLOCK_REALTIME, nanoseconds since 1970

// A deadline that is cheap to keep: no_deadline() never passes.
inline constexpr int64_t kNoDeadline = INT64_MAX;

}  // namespace collective_ops
