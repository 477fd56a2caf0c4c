#include "plan/geometry.h"

#include <algorithm>

namespace collective_ops {

Layout block_layout(const Plan& plan) {
  for (Layout layout : {plan.input, plan.output}) {
    if (layout == Layout::kSlices || has_counts(layout)) return layout;
  }
  return plan.input;
}

Geometry::Geometry(const Plan& plan, const Binding& binding) : ranks_(binding.world_size) {
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
    case Layout::kByDestination:
    case Layout::kBySource:
      divide_by_pair(binding);
      return;
    case Layout::kOwn:
      for (Extent& block : blocks_) block = {0, bytes};
      total_ = bytes;
      break;
    case Layout::kNone:
      break;
  }
  for (const Extent& block : blocks_) longest_ = std::max(longest_, block.length);
}

Extent Geometry::half(int which) const {
  const uint64_t middle = ranks_ > 1 ? blocks_[(ranks_ + 1) / 2].offset : total_;
  return which == 1 ? Extent{0, middle} : Extent{middle, total_ - middle};
}

void Geometry::divide_by_pair(const Binding& binding) {
  const auto n = static_cast<size_t>(ranks_);
  pairs_.assign(n * n, binding.count * binding.element_size);
  for (size_t i = 0; i < binding.counts.size(); ++i) pairs_[i] = binding.counts[i] * binding.element_size;
  longest_ = *std::ranges::max_element(pairs_);
  for (int rank = 0; rank < ranks_; ++rank) {
    for (Layout layout : {Layout::kByDestination, Layout::kBySource}) {
      total_ = std::max(total_, by_pair(layout, true, rank, rank).length);
    }
  }
}

Extent Geometry::by_pair(Layout layout, bool whole, int owner, int block) const {
  const auto bytes = [&](int b) {
    return layout == Layout::kByDestination ? pairs_[owner * ranks_ + b] : pairs_[b * ranks_ + owner];
  };
  uint64_t offset = 0;
  for (int b = 0; b < (whole ? ranks_ : block); ++b) offset += bytes(b);
  return whole ? Extent{0, offset} : Extent{offset, bytes(block)};
}

Extent Geometry::in(Layout layout, bool whole, int owner, int block) const {
  switch (layout) {
    case Layout::kOwn:
      return {0, blocks_[owner].length};
    case Layout::kNone:
      return {0, 0};
    case Layout::kByDestination:
    case Layout::kBySource:
      return by_pair(layout, whole, owner, block);
    default:
      return whole ? Extent{0, total_} : blocks_[block];
  }
}

}  // namespace collective_ops
