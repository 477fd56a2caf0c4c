#include "torch/group_state.h"

#include "torch/flight_recorder.h"

#include <utility>

namespace collective_ops::pytorch {
namespace {

c10d::ErrorType error_of(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOk:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupportedType:
      return c10d::ErrorType::SUCCESS;
    case ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace

void GroupState::ended(const CallWork& work, const Status& status) {
  if (!status.ok()) {
    auto none = c10d::ErrorType::SUCCESS;
    const auto error = error_of(status);
    error_.compare_exchange_strong(none, error);
    if (error != c10d::ErrorType::SUCCESS) FlightRecorder::instance().dump_failure(global_rank_);
  }
  if (hooked_.load(std::memory_order_acquire)) {
    const std::chrono::duration<float> taken = work.ended() - work.begun();
    Hook hook;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
    }
    if (hook) {
      hook(std::make_shared<c10d::WorkInfo>(work.retrieveOpType(), work.getSequencenumber(), work.begun(),
                                            work.ended(), taken));
    }
  }
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const std::lock_guard lock(mutex_);
    none_pending_.notify_all();
  }
}

void GroupState::wait_for_pending() {
  std::unique_lock lock(mutex_);
  none_pending_.wait(lock, [this] { return pending_.load(std::memory_order_acquire) == 0; });
}

void GroupState::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
  hooked_.store(true, std::memory_order_release);
}

}  // namespace collective_ops::pytorch
