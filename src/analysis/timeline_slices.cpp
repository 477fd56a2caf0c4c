#include "analysis/timeline_slices.h"

#include <algorithm>
#include <tuple>

namespace collective_ops {
namespace {

constexpr size_t kUnknownShare = 2000;  // of a job that does not say how many ranks it has
constexpr size_t kLeastShare = 16;

bool is_before(const TimelineSlice& a, const TimelineSlice& b) {
  return std::tuple(a.start_ns, -a.duration_ns, a.track, a.name) <
         std::tuple(b.start_ns, -b.duration_ns, b.track, b.name);
}

}  // namespace

size_t timeline_share(int world_size) {
  if (world_size <= 0) return kUnknownShare;
  return std::max(kTimelineEvents / static_cast<size_t>(world_size), kLeastShare);
}

void keep_longest(RankTimeline* timeline, size_t most) {
  std::vector<TimelineSlice>& slices = timeline->slices;
  if (slices.size() > most) {
    const auto end = slices.begin() + static_cast<ptrdiff_t>(most);
    std::nth_element(slices.begin(), end, slices.end(), [](const TimelineSlice& a, const TimelineSlice& b) {
      return a.duration_ns != b.duration_ns ? a.duration_ns > b.duration_ns : is_before(a, b);
    });
    timeline->left_out += slices.size() - most;
    timeline->longest_left_out_ns = std::max(timeline->longest_left_out_ns, end->duration_ns);
    slices.resize(most);
  }
  std::sort(slices.begin(), slices.end(), is_before);
}

}  // namespace collective_ops
