// Who waits for whom: the ranks' calls are matched, each is split into waiting and moving, and the waiting
// is charged to the rank that came last. Definitions: docs/analysis.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/profile_set.h"

namespace collective_ops {

struct MatchedMember {
  uint32_t rank_row = 0;  // of ProfileSet::ranks
  uint32_t call_row = 0;  // of RankProfile::calls
  int64_t start_ns = 0;   // on the common clock
  int64_t end_ns = 0;
};

// One collective, as the ranks that have it saw it. At least two members.
struct MatchedCall {
  std::vector<MatchedMember> members;
  int64_t latest_start_ns = 0;
  int64_t median_start_ns = 0;  // the lower one of two
  int64_t shortest_ns = 0;      // the least duration over ranks
  uint32_t latest = 0;          // row of `members`
};

struct RankWaiting {
  uint64_t calls = 0;       // matched
  uint64_t times_last = 0;  // of calls whose ranks did not come together
  double waited_ms = 0;     // latest start - own start
  double moved_ms = 0;      // own end - latest start
  double late_ms = 0;       // own start - median start, where that is positive
};

struct SlowRank {
  int rank = 0;
  double late_ms = 0;
  uint64_t times_last = 0, calls = 0;  // of the calls that lost most of the time
  std::string confidence;              // "high", "medium"
  std::string cause;
  std::string evidence;  // the call that lost most, when, and the file
};

struct WaitAnalysis {
  std::vector<MatchedCall> calls;     // by latest start
  std::vector<RankWaiting> waiting;   // by row of ProfileSet::ranks
  std::vector<int64_t> offset_ns;     // likewise: the rank's clock less the common one
  std::vector<SlowRank> slow;         // most lost first; empty: none
  double lost_ms = 0;                 // sum over calls of latest - median start
  uint64_t implausible = 0;           // pairings that cannot be: a rank ended before another began
  std::vector<std::string> findings;  // calls that differ between ranks, clocks, what was left out
};

WaitAnalysis analyze_waits(const ProfileSet& set);

}  // namespace collective_ops
