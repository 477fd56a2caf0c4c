// What a rank keeps of its events for the merged timeline: the longest ones, so that it stays small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace collective_ops {

// Of all ranks together: viewers that load a timeline whole stay quick.
constexpr size_t kTimelineEvents = 100'000;

enum class SliceKind : uint8_t { kHost, kRange, kCompute, kCopy };

struct TimelineSlice {
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  uint32_t name = 0;
  uint32_t track = 0;  // a name: thread or stream
  SliceKind kind = SliceKind::kHost;
};

struct RankTimeline {
  std::vector<TimelineSlice> slices;  // by start, of equal ones the longer first
  uint64_t left_out = 0;
  int64_t longest_left_out_ns = 0;
};

// How many of them a rank keeps while the others are not known yet. Depends on what its own profile says
// alone, so that shards keep what one run over all profiles keeps.
size_t timeline_share(int world_size);

// Leaves the `most` longest and puts them in order.
void keep_longest(RankTimeline* timeline, size_t most);

}  // namespace collective_ops
