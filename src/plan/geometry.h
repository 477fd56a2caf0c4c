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

  // Block b where all blocks stand in one space.
  Extent block(int b) const { return blocks_[b]; }
  uint64_t total() const { return total_; }
  uint64_t longest_block() const { return longest_; }

  // A block of `owner`'s space of this layout, or all of the space.
  Extent in(Layout layout, bool whole, int owner, int block) const;
  // Bytes of owner's space.
  uint64_t size_of(Layout layout, int owner) const { return in(layout, true, owner, owner).length; }

 private:
  std::vector<Extent> blocks_;
  uint64_t total_ = 0;
  uint64_t longest_ = 0;
};

// How scratch is divided: as the caller's space that holds all blocks.
Layout block_layout(const Plan& plan);

}  // namespace collective_ops
