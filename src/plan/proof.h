// prove(): runs the lowered programs of all ranks in an abstract machine, where a byte holds the list of
// inputs combined into it, and checks that
//   - every output is what the collective defines, each contribution exactly once, and where the plan says
//     rank_ordered, as one reduction of the inputs of ranks 0, 1, ... n-1; inputs are left as they were;
//   - no two accesses of the same bytes, one of them a write, are without an order given by arrivals,
//     signals and messages. The caller counts too: it writes its buffers before and after its call;
//   - nobody waits for ever, no counter falls, no message is left over, nothing outside a space is touched.
// Consecutive calls are proved together, since scratch is used again: one scratch for all calls that are not
// eager, and kEagerDepth slots taken in turn by the eager ones, with the executor's wait of program.h.
//
// A wait is ordered after the first signal that satisfies it, even where the machine had run further. So
// neither what is ordered nor what blocks depends on the schedule, and one schedule proves all. Several are
// offered because that argument is worth testing.
#pragma once

#include <cstdint>
#include <span>

#include <collective_ops/status.h>

#include "plan/program.h"

namespace collective_ops {

// A call that all ranks make. In place: all_gather's input is its block of the output, reduce_scatter's
// output its block of the input. A broadcast is always in place.
struct ProofCall {
  const Plan* plan = nullptr;
  Binding binding;  // `rank` is not looked at
  bool in_place = false;
};

// Which rank runs next.
struct Schedule {
  enum class Order : uint8_t {
    kForward,  // rank 0 as far as it gets, then rank 1 ...
    kBackward,
    kOneSlow,  // rank `seed` mod n only when nobody else can
    kRandom,   // short runs of ranks drawn from `seed`
  };
  Order order = Order::kForward;
  uint64_t seed = 0;
};

// Errors: those of lower(); kInternal with a text that names ranks, calls, instructions and bytes.
Status prove(std::span<const ProofCall> calls, const Schedule& schedule = {});

// The plan called often enough for its scratch to come round, in place and not, under a schedule of each
// order.
Status prove(const Plan& plan, const Binding& binding);

}  // namespace collective_ops
