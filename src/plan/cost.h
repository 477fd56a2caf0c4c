// What a plan costs on a machine: an estimate for choosing between plans and for playing them in virtual
// time. Cores and memory are shared by the ranks, so their terms count the work of all of them.
#pragma once

#include <cstdint>

#include <collective_ops/status.h>

#include "plan/program.h"
#include "topology/topology.h"

namespace collective_ops {

struct Cost {
  uint64_t copied_bytes = 0;   // bytes loaded plus bytes stored by all ranks: of copies and messages,
  uint64_t reduced_bytes = 0;  // and of reductions
  uint64_t memory_bytes = 0;   // of them, those that the caches do not hold
  uint32_t rounds = 0;         // times that a rank waits, one after the other, on the longest way

  double latency_ns = 0;  // of the rounds
  double core_ns = 0;     // of copies and reductions, on the cores there are
  double memory_ns = 0;   // of memory_bytes, at the bandwidth that all cores share

  uint64_t bytes() const { return copied_bytes + reduced_bytes; }
  double total_ns() const { return latency_ns + (core_ns > memory_ns ? core_ns : memory_ns); }
};

// `topology.ranks` must equal `binding.world_size`; binding.rank is not looked at. Errors: those of lower().
Result<Cost> cost(const Plan& plan, const Binding& binding, const Topology& topology);

}  // namespace collective_ops
