// What this machine costs, measured once in about a second: the numbers that plans are priced with.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "topology/topology.h"

namespace collective_ops::tune {

// nanoseconds = start_ns + bytes / bytes_per_ns, by least squares of relative errors. Bytes are loaded plus
// stored.
struct Fit {
  double start_ns = 0;
  double bytes_per_ns = 0;
  double residual = 0;  // the largest relative error of a point
};

struct Point {
  double bytes = 0;
  double nanoseconds = 0;
};

// Of at least two points of different sizes, none of them at no time.
Fit fit_line(std::span<const Point> points);

struct Probe {
  Topology topology;  // ranks = cores
  Fit copy;           // of one core, of what another core has just written
  Fit reduce;         // the same, of float32 sums of that and an own vector into a third
  double seconds = 0;
};

// `processors`: those that may be used, one of each core. `cache_bytes`: of the second level of a core; 0:
// unknown. kSystem where threads may not be bound. Where two processors could not be measured together, since
// others use them, the default hand-over stays.
Result<Probe> probe(const std::vector<int>& processors, uint64_t cache_bytes);

}  // namespace collective_ops::tune
