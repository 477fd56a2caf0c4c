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
// every rank's output can be reached by its peers, `direct` where what it looks at can be, else `read` where
// the kernel lets ranks read each other's private memory, else `staged`.
struct PlanNames {
  std::string_view eager;
  std::string_view push;
  std::string_view direct;
  std::string_view read;
  std::string_view staged;
};
struct ChosenCall {
  Collective collective = Collective::kAllReduce;
  size_t bytes = 0;  // of the vector, or of one rank's part, of several sizes the longest
  size_t element_size = 4;
  int world_size = 1;
};

// In this order: COLLECTIVE_OPS_ALGORITHM, HCCL_ALGO or NCCL_ALGO, COLLECTIVE_OPS_PATH, the plug-in, the
// table of COLLECTIVE_OPS_TUNING_TABLE, the one that is built in.
PlanNames choose(const ChosenCall& call, const Forced& forced);

// Between hosts, where one rank of each takes part in an all_reduce, broadcast or reduce: the plan that the
// environment names ("": none; it may be one for inside a host), and the one that is taken otherwise.
std::string_view preferred_between_hosts(Collective collective, const Forced& forced);
std::string_view choose_between_hosts(Collective collective, size_t bytes, int hosts);

// Whether the vector of a call consists of parts, one of each rank.
bool has_parts(Collective collective);

// Of the machine that the built-in numbers are from.
inline constexpr int kCoresOfDefaults = 2;

// The size of a piece so that all regions of `plan` fit in `scratch_bytes`; a multiple of 64.
size_t chunk_bytes(const Plan& plan, int world_size, size_t scratch_bytes);

}  // namespace collective_ops
