// timeline/cluster_timeline.json: the events of all ranks on one clock, in Chrome's trace format, which
// Perfetto opens. Limited in size: the longest are kept, and how many are not stands in the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/waits.h"

namespace collective_ops {

struct TimelineSelection {
  struct Rank {
    std::vector<uint32_t> steps, calls;  // rows of the rank's profile, by start
    std::vector<uint32_t> matches;       // of each of `calls`: row of WaitAnalysis::calls, or UINT32_MAX
    std::vector<TimelineSlice> slices;
  };
  std::vector<Rank> ranks;  // by row of ProfileSet::ranks
  uint64_t events = 0, left_out = 0;
  int64_t longest_left_out_ns = 0;
};

// Of the calls, the ranks keep the same ones: those that lasted longest on any rank.
TimelineSelection select_timeline(const ProfileSet& set, const WaitAnalysis& waits);

Status write_cluster_timeline(const ProfileSet& set, const WaitAnalysis& waits,
                              const TimelineSelection& selection, const std::filesystem::path& path);

}  // namespace collective_ops
