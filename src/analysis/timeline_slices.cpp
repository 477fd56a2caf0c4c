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

void drop_shortest(RankTimeline* timeline, size_t most) {
  std::vector<TimelineSlice>& slices = timeline->slices;
  if (slices.size() <= most) return;
  const auto end = slices.begin() + static_cast<ptrdiff_t>(most);
  std::nth_element(slices.begin(), end, slices.end(), [](const TimelineSlice& a, const TimelineSlice& b) {
    return a.duration_ns != b.duration_ns ? a.duration_ns > b.duration_ns : is_before(a, b);
  });
  timeline->left_out += slices.size() - most;
  timeline->longest_left_out_ns = std::max(timeline->longest_left_out_ns, end->duration_ns);
  slices.resize(most);
}

}  // namespace

size_t timeline_share(int world_size) {
  if (world_size <= 0) return kUnknownShare;
  return std::max(kTimelineEvents / static_cast<size_t>(world_size), kLeastShare);
}

void keep_longest(RankTimeline* timeline, size_t most) {
  drop_shortest(timeline, most);
  std::sort(timeline->slices.begin(), timeline->slices.end(), is_before);
}

void TimelineCollector::shrink() {
  drop_shortest(&timeline_, most_);
  for (size_t i = 0; i < timeline_.slices.size(); ++i) {
    least_ns_ =
        i == 0 ? timeline_.slices[i].duration_ns : std::min(least_ns_, timeline_.slices[i].duration_ns);
  }
}

}  // namespace collective_ops
