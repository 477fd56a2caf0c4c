// Which segment an address lies in, asked on every collective call while other threads add and remove
// segments. A sequence lock over a sorted table of fixed place: readers take no lock and nothing has
// to be reclaimed behind them; a writer (a new segment, seldom) makes them look again.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

namespace collective_ops {

struct SegmentRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uint32_t id = 0;
};

class SegmentTable {
 public:
  static constexpr size_t kCapacity = 4096;

  // One writer at a time. `ranges`: at most kCapacity, ascending, disjoint.
  void assign(std::span<const SegmentRange> ranges) {
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);  // odd: being written
    // Each store releases the odd version, so a reader that sees any of them sees that too.
    for (size_t i = 0; i < ranges.size(); ++i) {
      begins_[i].store(ranges[i].begin, std::memory_order_release);
      rest_[i].end.store(ranges[i].end, std::memory_order_release);
      rest_[i].id.store(ranges[i].id, std::memory_order_release);
    }
    if (ranges.empty())
      rest_[0].end.store(begins_[0].load(std::memory_order_relaxed), std::memory_order_release);
    count_.store(ranges.size(), std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // The range that holds an address. False where none does.
  bool find(uintptr_t address, SegmentRange& range) const {
    for (;;) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      const size_t at = last_from(address);
      const uintptr_t begin = begins_[at].load(std::memory_order_acquire);
      const uintptr_t end = rest_[at].end.load(std::memory_order_acquire);
      const uint32_t id = rest_[at].id.load(std::memory_order_acquire);
      if ((before & 1) == 0 && version_.load(std::memory_order_relaxed) == before) {
        if (address - begin >= end - begin) return false;  // below wraps round
        range = {begin, end, id};
        return true;
      }
      std::this_thread::yield();  // the writer may be waiting for this core
    }
  }

 private:
  struct Rest {
    std::atomic<uintptr_t> end{0};
    std::atomic<uint32_t> id{0};
  };

  // The last range that begins at or below the address, else the first.
  size_t last_from(uintptr_t address) const {
    size_t low = 0;
    size_t high = count_.load(std::memory_order_acquire);
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      if (begins_[middle].load(std::memory_order_acquire) <= address) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  std::atomic<uint64_t> version_{0};
  std::atomic<size_t> count_{0};
  std::array<std::atomic<uintptr_t>, kCapacity> begins_{};
  std::array<Rest, kCapacity> rest_{};
};

}  // namespace collective_ops
