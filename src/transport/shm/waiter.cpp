#include "transport/shm/waiter.h"

#include <algorithm>
#include <climits>
#include <ctime>
#include <utility>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/shm/pause.h"

namespace collective_ops::shm {
namespace {

// Waits that end so soon, in some 0.2 us, are not recorded: two readings of the clock would lengthen what they
// measure by a fifth.
constexpr int kUntimedPolls = 4;

// The half of a 64-bit word that changes with every raise; futexes are 32 bits wide.
const uint32_t* low_half(const std::atomic<uint64_t>& word) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<const uint32_t*>(&word);
}

void futex_sleep(const std::atomic<uint64_t>& word, uint64_t seen, int64_t ns) {
  const timespec limit = {ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, low_half(word), FUTEX_WAIT, static_cast<uint32_t>(seen), &limit, nullptr, 0);
}

}  // namespace

Waiter::Waiter(const GroupMemory& memory, int rank, bool oversubscribed, WaitObserver& observer)
    : memory_(memory),
      rank_(rank),
      observer_(observer),
      polls_(oversubscribed ? kPollsOversubscribed : kPolls),
      waited_ns_(static_cast<size_t>(memory.world_size())) {}

void Waiter::record_waits(bool recording) {
  recording_ = recording;
  if (recording) std::fill(waited_ns_.begin(), waited_ns_.end(), 0);
}

void Waiter::wake(std::atomic<uint64_t>& word) {
  syscall(SYS_futex, low_half(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Waiter::wake_all() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < memory_.world_size(); ++rank) {
    if (memory_.state(rank).sleepers.load(std::memory_order_relaxed) == 0) continue;
    wake(memory_.state(rank).progress);
    for (int slot = 0; slot < kLineDepth; ++slot) wake(memory_.line(rank, static_cast<uint64_t>(slot)).head);
  }
}

int64_t Waiter::deadline_ns() {
  if (deadline_ns_ == 0) {
    const int64_t now = monotonic_ns();
    memory_.state(rank_).begun_ns.store(now, std::memory_order_relaxed);
    deadline_ns_ = timeout_ns_ > 0 ? now + timeout_ns_ : kNoDeadline;
  }
  return deadline_ns_;
}

bool Waiter::healthy(int peer) {
  if (memory_.broken()) {
    status_ = memory_.failure();
  } else if (monotonic_ns() >= deadline_ns()) {
    status_ = observer_.timed_out(peer);
  } else {
    status_ = observer_.check_peers(peer);
  }
  return status_.ok();
}

bool Waiter::poll_and_yield(const Awaited& awaited) {
  int64_t now = pace_ != nullptr ? monotonic_ns() : 0;
  const bool crowded = pace_ != nullptr && pace_->crowded(now);
  for (int i = 0; i < (crowded ? kPollsOversubscribed : polls_); ++i) {
    if (awaited.reached(awaited.word->load(std::memory_order_acquire))) return true;
    cpu_relax();
  }
  if (crowded) return false;
  now = monotonic_ns();
  const bool sending = pace_ != nullptr && pace_->sending();
  const int64_t stop = std::min(now + (sending ? kNapWhileSendingNs / 2 : kYieldNs), deadline_ns());
  while (!memory_.broken() && now < stop) {
    sched_yield();
    if (awaited.reached(awaited.word->load(std::memory_order_acquire))) return true;
    const int64_t before = std::exchange(now, monotonic_ns());
    if (pace_ != nullptr && pace_->note_yield(before, now)) break;
  }
  return false;
}

bool Waiter::sleep_until(const Awaited& awaited) {
  RankState& peer = memory_.state(awaited.peer);
  RankState& mine = memory_.state(rank_);
  mine.waits_for.store(awaited.peer, std::memory_order_relaxed);
  int64_t nap = kFirstNapNs;
  bool reached = false;
  for (;;) {
    const uint64_t first = awaited.word->load(std::memory_order_acquire);
    if ((reached = awaited.reached(first))) break;
    if (!healthy(awaited.peer)) {
      // What a peer did before it died, or in the last moment, still counts.
      reached = !memory_.broken() && awaited.reached(awaited.word->load(std::memory_order_acquire));
      if (reached) status_ = Status();
      break;
    }
    peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint64_t seen = awaited.word->load(std::memory_order_seq_cst);
    if (!awaited.reached(seen)) {
      const int64_t left =
          deadline_ns() == kNoDeadline ? nap : std::max<int64_t>(deadline_ns() - monotonic_ns(), 1000);
      const bool sending = pace_ != nullptr && pace_->sending();
      futex_sleep(*awaited.word, seen, std::min(sending ? kNapWhileSendingNs : nap, left));
    }
    peer.sleepers.fetch_sub(1, std::memory_order_relaxed);
    nap = std::min(nap * 2, pace_ != nullptr ? kLongestNapBetweenHostsNs : kLongestNapNs);
  }
  mine.waits_for.store(-1, std::memory_order_relaxed);
  return reached;
}

bool Waiter::wait_for(const Awaited& awaited) {
  if (!recording_) return poll_and_yield(awaited) || sleep_until(awaited);
  for (int i = 0; i < kUntimedPolls; ++i) {
    cpu_relax();
    if (awaited.reached(awaited.word->load(std::memory_order_acquire))) return true;
  }
  const int64_t begun = monotonic_ns();
  const bool reached = poll_and_yield(awaited) || sleep_until(awaited);
  waited_ns_[awaited.peer] += monotonic_ns() - begun;
  return reached;
}

bool Waiter::pause_once(int peer) {
  // Messages poll two directions at once, so there is no single word to sleep on: yield, then nap.
  const int64_t turn = pauses_++;
  if (turn < 1000) {
    sched_yield();
    return !memory_.broken() || healthy(peer);
  }
  if (!healthy(peer)) return false;
  const timespec nap = {0, turn < 2000 ? 50'000 : 1'000'000};
  nanosleep(&nap, nullptr);
  return true;
}

}  // namespace collective_ops::shm
