// The free ranges of one segment: lowest fit first, neighbours merged.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace collective_ops {

class FreeList {
 public:
  explicit FreeList(size_t size) : size_(size) { ranges_.emplace(0, size); }

  // The offset of `bytes` at a multiple of `alignment` (a power of two).
  std::optional<size_t> take(size_t bytes, size_t alignment) {
    for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
      const auto [begin, length] = *it;
      const size_t offset = (begin + alignment - 1) & ~(alignment - 1);
      const size_t gap = offset - begin;
      if (length < gap || length - gap < bytes) continue;
      ranges_.erase(it);
      if (gap > 0) ranges_.emplace(begin, gap);
      if (length - gap > bytes) ranges_.emplace(offset + bytes, length - gap - bytes);
      return offset;
    }
    return std::nullopt;
  }

  void give(size_t offset, size_t bytes) {
    auto it = ranges_.emplace(offset, bytes).first;
    const auto next = std::next(it);
    if (next != ranges_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      ranges_.erase(next);
    }
    if (it == ranges_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      ranges_.erase(it);
    }
  }

  bool all_free() const { return ranges_.size() == 1 && ranges_.begin()->second == size_; }
  size_t range_count() const { return ranges_.size(); }

 private:
  size_t size_;
  std::map<size_t, size_t> ranges_;  // offset -> bytes
};

}  // namespace collective_ops
