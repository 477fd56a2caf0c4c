// Calls of one rank in the order they were made. A blocking call runs in its caller's thread; a started
// one in the queue's thread, unless somebody waits for it first: then the waiter runs it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include <collective_ops/communicator.h>

#include "communicator/group_end.h"

namespace collective_ops {

class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  explicit CallQueue(std::unique_ptr<GroupEnd> group);
  ~CallQueue();

  Status run(const Call& call);
  std::shared_ptr<Work> start(const Call& call, std::shared_ptr<CallListener> listener = nullptr);
  void abort(const Status& reason);

  // Runs what is left, and ends the thread; where the interrupt check fails meanwhile, breaks the group
  // instead. Not for a forked child, where the queue must not even be destroyed: its thread is missing.
  void finish();
  bool forked() const;

  // Announces a call that was refused before it could be made, so that peers in that call learn of it.
  void refuse();

  GroupEnd& group() { return *group_; }

 private:
  class Item;
  friend class Item;

  void run_front(std::unique_lock<std::mutex>& lock);  // with lock held and nothing running
  void serve();
  bool start_thread();
  Status run_guarded(const Call& call, int64_t issued_ns);
  bool runnable() const {
    return (state_.load(std::memory_order_relaxed) & kRunning) == 0 && !items_.empty();
  }

  // Bits of state_: a blocking call may begin without the lock only while both are clear.
  static constexpr uint32_t kRunning = 1;
  static constexpr uint32_t kPending = 2;

  std::unique_ptr<GroupEnd> group_;
  uint32_t fork_generation_;
  std::atomic<uint32_t> state_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> items_;
  std::thread thread_;
  bool stop_ = false;
};

}  // namespace collective_ops
