// How ranks and threads wait politely, the same wherever they do: they poll, then yield, then nap. Ranks may
// outnumber cores, so polling is short there.
#pragma once

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

// One turn of a polling loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace collective_ops::shm
