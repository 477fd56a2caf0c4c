// Where the bytes of a call are found by the core that touches them next: in its own cache, in another core's
// or the one that all share, or in memory. Memories are divided into cells; of each is known which cores have
// it since it was last written, and how many bytes each core has touched since it had it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topology/topology.h"

namespace collective_ops {

class Footprint {
 public:
  Footprint(const Topology& topology, int cores)
      : topology_(topology), touched_(static_cast<size_t>(cores)) {}

  // The number of the new memory.
  int add_memory(uint64_t bytes, uint64_t cell_bytes);

  // Nanoseconds in which `core` loads or stores the bytes, memory's share apart.
  struct Price {
    double cached_ns = 0;
    double memory_bytes = 0;
  };
  Price load(int core, int memory, uint64_t begin, uint64_t end) {
    return touch(core, memory, begin, end, false);
  }
  Price store(int core, int memory, uint64_t begin, uint64_t end) {
    return touch(core, memory, begin, end, true);
  }

 private:
  struct Cell {
    std::vector<double> seen;  // by core: bytes that it had touched when it had this; < 0: has it not
    double touched = -1;       // by all cores, when anyone had it
  };
  struct Memory {
    uint64_t cell_bytes = 64;
    std::vector<Cell> cells;
  };

  Price touch(int core, int memory, uint64_t begin, uint64_t end, bool stores);

  const Topology& topology_;
  std::vector<double> touched_;  // bytes so far, by core
  double all_touched_ = 0;
  std::vector<Memory> memories_;
};

}  // namespace collective_ops
