#include "base/clock.h"

#include <ctime>

namespace collective_ops {
namespace {

int64_t read(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int64_t monotonic_ns() { return read(CLOCK_MONOTONIC); }
int64_t real_ns() { return read(CLOCK_REALTIME); }

}  // namespace collective_ops
