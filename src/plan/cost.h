// What a plan costs on a machine: the bytes that its programs move, and the time that they take when they are
// played in virtual time (play.h).
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

  // Of the time from one call to the next, when calls are made back to back:
  double core_ns = 0;     // the busiest core moves and combines bytes that caches hold,
  double memory_ns = 0;   // waits for memory,
  double link_ns = 0;     // the busiest link between hosts carries bytes, one way: a part of latency_ns
  double latency_ns = 0;  // and waits for other ranks or runs none of them

  uint64_t bytes() const { return copied_bytes + reduced_bytes; }
  double total_ns() const { return core_ns + memory_ns + latency_ns; }
};

// Caches and memory as the calls of play.h find them: in place where a call can be. `by_system_call`: peers'
// inputs and outputs are private, and read by the kernel. `topology.ranks` must equal `binding.world_size`;
// binding.rank is not looked at. Errors: those of lower(); kInvalidArgument where the topology has no cores,
// or its hosts do not divide the ranks.
Result<Cost> cost(const Plan& plan, const Binding& binding, const Topology& topology,
                  bool by_system_call = false);

}  // namespace collective_ops
