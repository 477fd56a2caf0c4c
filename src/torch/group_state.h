// What outlives a single call of a group: its error, its pending works, and who is told of their ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "torch/call_work.h"

namespace collective_ops::pytorch {

class GroupState final : public WorkObserver {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  void begun() { pending_.fetch_add(1, std::memory_order_relaxed); }
  void ended(const CallWork& work, const Status& status) override;
  void wait_for_pending();

  // For the name of a dump.
  void set_global_rank(int rank) { global_rank_ = rank; }

  // Of the first call that failed for another reason than its arguments.
  c10d::ErrorType error() const { return error_.load(std::memory_order_acquire); }
  void set_hook(Hook hook);

 private:
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  int global_rank_ = 0;
  std::atomic<int64_t> pending_{0};
  std::atomic<bool> hooked_{false};
  std::mutex mutex_;
  std::condition_variable none_pending_;
  Hook hook_;
};

}  // namespace collective_ops::pytorch
