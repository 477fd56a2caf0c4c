#include "plan/geometry.h"

#include <algorithm>

namespace collective_ops {

Layout block_layout(const Plan& plan) {
  for (Layout layout : {plan.input, plan.output}) {
    if (layout == Layout::kSlices || layout == Layout::kConcatenated) return layout;
  }
  return plan.input;
}

Geometry::Geometry(const Plan& plan, const Binding& binding) {
  const int n = binding.world_size;
  const uint64_t bytes = binding.count * binding.element_size;
  blocks_.resize(n);
  switch (block_layout(plan)) {
    case Layout::kSlices: {
      const uint64_t slice = round_to_line((bytes + n - 1) / n);
      for (int b = 0; b < n; ++b) {
        const uint64_t begin = std::min(bytes, b * slice);
        blocks_[b] = {begin, std::min(bytes, begin + slice) - begin};
      }
      total_ = bytes;
      break;
    }
    case Layout::kConcatenated:
      for (int b = 0; b < n; ++b) {
        const uint64_t length = binding.counts.empty() ? bytes : binding.counts[b] * binding.element_size;
        blocks_[b] = {total_, length};
        total_ += length;
      }
      break;
    case Layout::kOwn:
      for (Extent& block : blocks_) block = {0, bytes};
      total_ = bytes;
      break;
    case Layout::kNone:
      break;
  }
  for (const Extent& block : blocks_) longest_ = std::max(longest_, block.length);
}

Extent Geometry::in(Layout layout, bool whole, int owner, int block) const {
  switch (layout) {
    case Layout::kOwn:
      return {0, blocks_[owner].length};
    case Layout::kNone:
      return {0, 0};
    default:
      return whole ? Extent{0, total_} : blocks_[block];
  }
}

}  // namespace collective_ops
