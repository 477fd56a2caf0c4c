// How a rank waits for a word that a peer raises: it polls, then yields, then sleeps on a futex.
// Ranks may outnumber cores, so polling is short there and nothing ever spins without yielding.
// While it sleeps it looks, every few milliseconds, for a broken group, dead peers and the deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <collective_ops/status.h>

#include "base/clock.h"
#include "transport/shm/group_memory.h"
#include "transport/shm/pause.h"

namespace collective_ops::shm {

// What only the communicator can say about a wait.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  // Not ok where a rank of the group died, or `peer` has left it. Called every few milliseconds.
  virtual Status check_peers(int peer) = 0;
  // The error of a wait for `peer` whose deadline has passed.
  virtual Status timed_out(int peer) = 0;
};

class Waiter {
 public:
  Waiter(const GroupMemory& memory, int rank, bool oversubscribed, WaitObserver& observer);

  // Begins a call that may wait for `timeout_ns` (0: for ever). The clock is read at its first long wait
  // only: short calls never ask for the time.
  void begin_call(int64_t timeout_ns) {
    timeout_ns_ = timeout_ns;
    deadline_ns_ = 0;
    status_ = Status();
  }
  // In a group on several hosts, where ranks wait for one that waits for the network.
  void follow(HostsPace* pace) { pace_ = pace; }
  int64_t deadline_ns();  // of this call; kNoDeadline where there is none

  // True once `peer` has raised its counter to `value`; false on failure (see status()).
  bool until_progress(int peer, uint64_t value) {
    const std::atomic<uint64_t>& word = memory_.state(peer).progress;
    if (word.load(std::memory_order_acquire) >= value) return true;
    return wait_for({&word, value, peer, Compare::kAtLeast});
  }
  // True once `peer` has announced call `sequence`.
  bool until_arrival(int peer, uint64_t sequence) {
    const std::atomic<uint64_t>& word = memory_.line(peer, sequence).head;
    if (arrived(word.load(std::memory_order_acquire), sequence)) return true;
    return wait_for({&word, sequence, peer, Compare::kSequence});
  }
  // Raises a word of this rank and wakes who sleeps on it.
  void raise(std::atomic<uint64_t>& word, uint64_t value) {
    word.store(value, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (memory_.state(rank_).sleepers.load(std::memory_order_relaxed) != 0) wake(word);
  }

  // Wakes every peer that sleeps on a word of any rank: the group has failed, or this rank leaves.
  void wake_all();

  const Status& status() const { return status_; }
  void fail(Status status) { status_ = std::move(status); }

  // Time this rank has waited for each peer, in ns; kept only while `recording`.
  void record_waits(bool recording);
  std::vector<int64_t>& waited_ns() { return waited_ns_; }

  // One polite step of a loop that polls something else: yields, checks failure and deadline.
  bool pause_once(int peer);
  void begin_pauses() { pauses_ = 0; }

  // Whether a line that shows `head` has announced call `sequence` (sequences wrap at 2^32).
  static bool arrived(uint64_t head, uint64_t sequence) {
    return head != 0 &&
           static_cast<int32_t>(static_cast<uint32_t>(head) - static_cast<uint32_t>(sequence)) >= 0;
  }

 private:
  enum class Compare : uint8_t { kAtLeast, kSequence };
  struct Awaited {
    const std::atomic<uint64_t>* word;
    uint64_t value;
    int peer;
    Compare compare;
    bool reached(uint64_t seen) const {
      return compare == Compare::kAtLeast ? seen >= value : arrived(seen, value);
    }
  };

  bool wait_for(const Awaited& awaited);
  bool poll_and_yield(const Awaited& awaited);
  bool sleep_until(const Awaited& awaited);
  bool healthy(int peer);
  static void wake(std::atomic<uint64_t>& word);

  GroupMemory memory_;
  int rank_;
  WaitObserver& observer_;
  int polls_;
  HostsPace* pace_ = nullptr;
  int64_t timeout_ns_ = 0;
  int64_t deadline_ns_ = 0;  // 0: not computed yet
  Status status_;
  bool recording_ = false;
  std::vector<int64_t> waited_ns_;
  int64_t pauses_ = 0;
};

}  // namespace collective_ops::shm
