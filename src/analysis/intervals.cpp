#include "analysis/intervals.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace collective_ops {

IntervalSet united(std::vector<Interval> intervals) {
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), by_begin)) {
    std::sort(intervals.begin(), intervals.end(), by_begin);
  }
  IntervalSet result;
  for (const Interval& interval : intervals) {
    if (interval.end <= interval.begin) continue;
    if (!result.empty() && interval.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, interval.end);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

IntervalSet united(const IntervalSet& a, const IntervalSet& b) {
  std::vector<Interval> all;
  all.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all),
             [](const Interval& x, const Interval& y) { return x.begin < y.begin; });
  return united(std::move(all));
}

IntervalSet intersection(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet result;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval common{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (common.begin < common.end) result.push_back(common);
    (a[i].end < b[j].end ? i : j)++;
  }
  return result;
}

IntervalSet difference(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet result;
  size_t j = 0;
  for (Interval rest : a) {
    while (j < b.size() && b[j].end <= rest.begin) ++j;
    for (size_t k = j; k < b.size() && b[k].begin < rest.end; ++k) {
      if (b[k].begin > rest.begin) result.push_back({rest.begin, b[k].begin});
      rest.begin = std::max(rest.begin, b[k].end);
    }
    if (rest.begin < rest.end) result.push_back(rest);
  }
  return result;
}

int64_t length_of(const IntervalSet& set) {
  int64_t length = 0;
  for (const Interval& interval : set) length += interval.end - interval.begin;
  return length;
}

}  // namespace collective_ops
