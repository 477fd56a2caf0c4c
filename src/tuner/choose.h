// Which plans serve a call. A pure function of what all ranks agree on, so that all pick the same.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "plan/plan.h"
#include "tuner/forced.h"

namespace collective_ops {

// Names of plans; empty: none. Where `eager` is set and its payload fits an eager slot, it is used unless
// there is a `direct` too and every rank's memory can be reached by its peers. Otherwise `push` runs where
// every rank's output can be reached by its peers, `direct` where what it looks at can be, else `read` where the kernel lets ranks read each other's
// private memory, else `staged`.
struct PlanNames {
  std::string_view eager;
  std::string_view push;
  std::string_view direct;
  std::string_view read;
  std::string_view staged;
};
// `bytes`: of the vector, or of one rank's part, of several sizes the longest.
PlanNames choose(Collective collective, size_t bytes, int world_size, const Forced& forced);

// The size of a piece so that all regions of `plan` fit in `scratch_bytes`; a multiple of 64.
size_t chunk_bytes(const Plan& plan, int world_size, size_t scratch_bytes);

}  // namespace collective_ops
