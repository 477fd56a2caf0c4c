// How ranks and threads wait politely, the same wherever they do: they poll, then yield, then nap. Ranks may
// outnumber cores, so polling is short there.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collective_ops::shm {

// About 10 us of polling where every rank has a core of its own; a wake-up from a futex costs more.
inline constexpr int kPolls = 400;
inline constexpr int kPollsOversubscribed = 2;  // more ranks than cores
// A turn of yielding takes 0.3 us across cores. After this long the peer is busy, and sleeping is polite.
inline constexpr int64_t kYieldNs = 200'000;
// A yield that takes so long has let others run: they want this core. Who waits for another host then sleeps,
// since it would get the core back late, while the system wakes who sleeps at once.
inline constexpr int64_t kCrowdedYieldNs = 20'000;
inline constexpr int64_t kFirstNapNs = 1'000'000;
inline constexpr int64_t kLongestNapNs = 50'000'000;
// Whoever waits in a group on several hosts moves its messages to others between two naps.
inline constexpr int64_t kLongestNapBetweenHostsNs = 4'000'000;
inline constexpr int64_t kNapWhileSendingNs = 100'000;

// What a rank's waits in a group on several hosts go by, those for its own host's ranks as those for others.
// One thread at a time.
class HostsPace {
 public:
  // Whether other threads want this core: yields took long. Who waits had then better sleep, and asks again
  // after a while.
  bool crowded(int64_t now_ns) const { return now_ns < crowded_until_ns_; }
  // Of a yield; true where others ran meanwhile. Ranks that take turns do so shortly, and go on taking turns;
  // strangers have the core for a whole slice, and will again.
  bool note_yield(int64_t before_ns, int64_t after_ns) {
    const int64_t took = after_ns - before_ns;
    if (took <= kCrowdedYieldNs) {
      memory_ns_ = std::max(memory_ns_ / 2, kLeastMemoryNs);
      return false;
    }
    memory_ns_ = took > kSliceNs ? kMostMemoryNs : std::min(2 * memory_ns_, kLongTurnsNs);
    crowded_until_ns_ = after_ns + memory_ns_;
    return true;
  }

  // Whether messages to other hosts have not gone yet, for want of room: who waits moves them on.
  bool sending() const { return sending_; }
  void set_sending(bool sending) { sending_ = sending; }

 private:
  static constexpr int64_t kSliceNs = 500'000;
  static constexpr int64_t kLeastMemoryNs = 1'000'000;
  static constexpr int64_t kLongTurnsNs = 20'000'000;
  static constexpr int64_t kMostMemoryNs = 600'000'000;
  int64_t crowded_until_ns_ = 0;
  int64_t memory_ns_ = kLeastMemoryNs;
  bool sending_ = false;
};

// One turn of a polling loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace collective_ops::shm
