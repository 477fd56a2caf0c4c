// How fast one processor sees what another has written: latency and bandwidth of a pair, measured.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include <collective_ops/status.h>

namespace collective_ops::topo {

struct Link {
  double latency_ns = 0;    // one way: a cache line from processor to processor
  double forward_gbs = 0;   // the second reads what the first has written, kLinkBytes of it
  double backward_gbs = 0;  // the other way round
};

inline constexpr size_t kLinkBytes = size_t{1} << 20;

// Binds a thread to each of the two processors, which may be the same. The best of several short batches, so
// that other programs count for little. nullopt: it was not done in three seconds, since one of them does not
// run. kSystem: a thread may not be bound there.
Result<std::optional<Link>> measure_link(int first, int second);

// The least nanoseconds that `read` took on the processor `to`, of memory that `from` had just written; both
// may be the same. nullopt, kSystem: as above.
Result<std::optional<double>> measure_transfer(int from, int to, size_t bytes,
                                               const std::function<void(const void*)>& read);

}  // namespace collective_ops::topo
