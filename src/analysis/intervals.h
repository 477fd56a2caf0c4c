// Sets of time as sorted intervals that do not touch: union, intersection, difference.
#pragma once

#include <cstdint>
#include <vector>

namespace collective_ops {

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;  // past the last nanosecond
  friend bool operator==(const Interval&, const Interval&) = default;
};
using IntervalSet = std::vector<Interval>;

IntervalSet united(std::vector<Interval> intervals);  // any order, overlapping or not
IntervalSet united(const IntervalSet& a, const IntervalSet& b);
IntervalSet intersection(const IntervalSet& a, const IntervalSet& b);
IntervalSet difference(const IntervalSet& a, const IntervalSet& b);
int64_t length_of(const IntervalSet& set);

}  // namespace collective_ops
