// What this machine costs, measured once in under two seconds: the numbers that plans are priced with.
#pragma once

#include <cstdint>
#include <vector>

#include <collective_ops/status.h>

#include "topology/topology.h"

namespace collective_ops::tune {

struct Probe {
  Topology topology;        // ranks = cores
  size_t calls = 0;         // that the numbers were fitted to
  double median_error = 0;  // of their times, as played with these numbers: |played / measured - 1|
  double worst_error = 0;
  double seconds = 0;
};

// `processors`: those that may be used, one of each core. `cache_bytes`: of the second level of a core, and
// `shared_cache_bytes` of the last; 0: unknown. Starts processes and threads, so it is called before the
// first thread is made. kSystem where threads may not be bound or no process can be made; kTimeout where two
// processors could not be measured together, since other programs use them.
Result<Probe> probe(const std::vector<int>& processors, uint64_t cache_bytes, uint64_t shared_cache_bytes);

}  // namespace collective_ops::tune
