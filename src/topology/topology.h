// The machine a group of ranks runs on, as the cost of plans needs it. Bandwidths count bytes loaded plus
// bytes stored, so a copy of one byte is two. Bytes per nanosecond are GB/s.
#pragma once

#include <cstdint>

namespace collective_ops {

struct Topology {
  int ranks = 1;
  int cores = 1;  // that the ranks may use, all together
  // One core, on data in its cache, and the bound that all cores share on data that is not.
  double copy_bytes_per_ns = 0;
  double reduce_bytes_per_ns = 0;
  double memory_bytes_per_ns = 0;
  uint64_t cache_bytes = 0;  // of one core: what is used again within this many bytes costs no memory traffic
  double signal_ns = 0;      // until a rank that spins on another core sees a signal
  double yield_ns = 0;       // until a rank that shares the core runs

  bool oversubscribed() const { return ranks > cores; }
};

// Defaults from measurements on one small x86 machine: right in proportion, not in absolute terms.
Topology measured_defaults(int ranks, int cores);

}  // namespace collective_ops
