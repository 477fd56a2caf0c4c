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

// Whether all that a plan needs of other ranks are messages, so that it can run between hosts.
bool is_of_messages(const Plan& plan);

// How a group over several hosts makes a call between them, as explain and traces name it: a plan of messages
// that one rank of each host runs; of what moves or adds up blocks "pairwise" or "linear", each rank with all
// others at once; or, of long all_reduces, that in pieces, which overlap with what goes on inside the hosts.
// `bytes` as in ChosenCall. A plan that the environment names wins, unless it is one for inside a host.
inline constexpr std::string_view kPieces = "pieces";
std::string_view way_between_hosts(Collective collective, size_t bytes, int hosts, const Forced& forced);

// Whether the vector of a call consists of parts, one of each rank.
bool has_parts(Collective collective);

// Of the machine that the built-in numbers are from.
inline constexpr int kCoresOfDefaults = 2;

// The size of a piece so that all regions of `plan` fit in `scratch_bytes`; a multiple of 64.
size_t chunk_bytes(const Plan& plan, int world_size, size_t scratch_bytes);

}  // namespace collective_ops
