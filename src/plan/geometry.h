// Where the blocks of a call's spaces lie, in bytes. A function of values that all ranks share, so every
// rank computes the same.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/program.h"

namespace collective_ops {

struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
};

inline constexpr uint64_t kCacheLine = 64;

constexpr uint64_t round_to_line(uint64_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

class Geometry {
 public:
  // `binding` must have passed lower()'s checks.
  Geometry(const Plan& plan, const Binding& binding);

  // Block b where all blocks stand in one space and lie alike on all ranks.
  Extent block(int b) const { return blocks_[b]; }
  // The first (1) or second (2) half of the blocks, where they stand one behind the other.
  Extent half(int which) const;
  // Bytes of all blocks together; where that differs between ranks, the most that any has.
  uint64_t total() const { return total_; }
  uint64_t longest_block() const { return longest_; }

  // A block of `owner`'s space of this layout, or all of the space.
  Extent in(Layout layout, bool whole, int owner, int block) const;
  // Bytes of owner's space.
  uint64_t size_of(Layout layout, int owner) const { return in(layout, true, owner, owner).length; }

 private:
  void divide_by_pair(const Binding& binding);
  Extent by_pair(Layout layout, bool whole, int owner, int block) const;

  int ranks_ = 0;
  std::vector<uint64_t> pairs_;  // bytes from rank s to rank d at s * ranks_ + d
  std::vector<Extent> blocks_;
  uint64_t total_ = 0;
  uint64_t longest_ = 0;
};

// Of blocks that differ from rank to rank.
constexpr bool is_by_pair(Layout layout) {
  return layout == Layout::kByDestination || layout == Layout::kBySource;
}
// Of n blocks that may be of different sizes.
constexpr bool has_counts(Layout layout) { return layout == Layout::kConcatenated || is_by_pair(layout); }

// How scratch is divided: as the caller's space that holds all blocks.
Layout block_layout(const Plan& plan);

}  // namespace collective_ops
