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

// How many of them each of so many ranks has; 0: it is not known how many there are. While a rank is read,
// that is what its own profile says alone, so that shards keep what one run over all profiles keeps.
size_t timeline_share(int world_size);

// Leaves the `most` longest and puts them in order.
void keep_longest(RankTimeline* timeline, size_t most);

// Takes events one by one and keeps the `most` longest, without ever holding many more.
class TimelineCollector {
 public:
  TimelineCollector(size_t most, RankTimeline* timeline) : most_(most), timeline_(*timeline) {}
  ~TimelineCollector() { keep_longest(&timeline_, most_); }
  TimelineCollector(const TimelineCollector&) = delete;
  TimelineCollector& operator=(const TimelineCollector&) = delete;
  void add(const TimelineSlice& slice) {
    if (slice.duration_ns < least_ns_) {
      ++timeline_.left_out;
      if (slice.duration_ns > timeline_.longest_left_out_ns) {
        timeline_.longest_left_out_ns = slice.duration_ns;
      }
      return;
    }
    timeline_.slices.push_back(slice);
    if (timeline_.slices.size() > 2 * most_ + 4096) shrink();
  }

 private:
  void shrink();

  size_t most_;
  RankTimeline& timeline_;
  int64_t least_ns_ = 0;  // what is shorter cannot be among the longest
};

}  // namespace collective_ops
