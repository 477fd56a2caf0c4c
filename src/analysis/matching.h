// Which calls of different ranks are the same collective.
#pragma once

#include <string>
#include <vector>

#include "analysis/waits.h"

namespace collective_ops {

struct Matching {
  std::vector<MatchedCall> calls;  // by latest start
  uint64_t implausible = 0;
  std::vector<int64_t> offset_ns;  // by row of ProfileSet::ranks: its clock less the common one
  std::vector<std::string> findings;
};

// By the profiler's own numbering; else by group and sequence; else by order among calls of one kind and
// size, in the partition into groups that fits the times best. Clocks of several hosts are aligned by the
// ends of the calls, which ranks leave together.
Matching match_calls(const ProfileSet& set);

}  // namespace collective_ops
