// Plays the programs of all ranks in virtual time, several calls one behind the other: cores that run one
// rank at a time, signals and messages that take their time, bytes that lie in caches or not.
#pragma once

#include <span>
#include <vector>

#include "plan/program.h"
#include "topology/topology.h"

namespace collective_ops {

struct PlayedCall {
  const Plan* plan = nullptr;
  Binding binding;                    // `rank` is not looked at
  std::span<const Program> programs;  // of each rank
  bool by_system_call = false;        // peers' inputs and outputs are private, and read by the kernel
};

struct Played {
  double total_ns = 0;   // from one call to the next
  double core_ns = 0;    // of them, the busiest core moves bytes that caches hold,
  double memory_ns = 0;  // or waits for memory
  double link_ns = 0;    // that the busiest link between hosts carries bytes, one way
};

Played play(const PlayedCall& call, const Topology& topology);

}  // namespace collective_ops
