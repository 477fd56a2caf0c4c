#include "communicator/call_queue.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/fork.h"
#include "communicator/own_thread.h"

namespace collective_ops {
namespace {

constexpr auto kInterruptPeriod = std::chrono::milliseconds(50);

Status from_inside(const Call& call) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format(
          "{}: this thread is already inside a call of this group (a signal handler, or an interrupt check, "
          "makes a call of its own). Set a flag there, and act on it after the call",
          name_of(call.collective))};
}

// The queue whose call this thread runs: a call made from within it would wait for itself.
thread_local const void* inside = nullptr;

class Inside {
 public:
  explicit Inside(const void* queue) : before_(std::exchange(inside, queue)) {}
  ~Inside() { inside = before_; }

 private:
  const void* before_;
};

}  // namespace

class CallQueue::Item final : public Work {
 public:
  Item(std::shared_ptr<CallQueue> queue, const Call& call, std::shared_ptr<CallListener> listener)
      : queue_(std::move(queue)),
        call_(call),
        listener_(std::move(listener)),
        send_counts_(call.send_counts.begin(), call.send_counts.end()),
        recv_counts_(call.recv_counts.begin(), call.recv_counts.end()),
        issued_ns_(monotonic_ns()) {
    call_.send_counts = send_counts_;
    call_.recv_counts = recv_counts_;
  }

  bool done() const override { return done_.load(std::memory_order_acquire); }

  Status wait(std::optional<std::chrono::milliseconds> timeout) override {
    if (done()) return status_;
    if (queue_->forked()) return after_fork();
    if (inside == queue_.get()) return from_inside(call_);
    if (timeout && *timeout > std::chrono::hours(24 * 365)) timeout.reset();  // for ever
    const auto limit =
        timeout ? std::chrono::steady_clock::now() + *timeout : std::chrono::steady_clock::time_point::max();
    std::unique_lock lock(queue_->mutex_);
    while (!done()) {
      // A wait with a limit must not enter a call that may last longer: the queue's thread runs that.
      const auto ready = [&] { return done() || (!timeout && queue_->runnable()); };
      if (!ready()) {
        // In slices, so that Ctrl-C ends the wait also while another thread runs the call.
        const auto slice = std::min(limit, std::chrono::steady_clock::now() + kInterruptPeriod);
        if (queue_->changed_.wait_until(lock, slice, ready)) continue;
        if (std::chrono::steady_clock::now() >= limit) return timed_out(*timeout);
        lock.unlock();
        if (Status status = queue_->group_->check_interrupt(); !status.ok()) {
          queue_->group_->abort(status);  // as in a blocking call: nobody is left waiting for this rank
          return status;
        }
        lock.lock();
      } else if (!done()) {
        queue_->run_front(lock);
      }
    }
    return status_;
  }

 private:
  friend class CallQueue;

  Status timed_out(std::chrono::milliseconds waited) const {
    return {ErrorCode::kTimeout, fmt::format("waited {} ms for an asynchronous {}; the call goes on",
                                             waited.count(), name_of(call_.collective))};
  }

  std::shared_ptr<CallQueue> queue_;
  Call call_;
  std::shared_ptr<CallListener> listener_;
  std::vector<size_t> send_counts_, recv_counts_;  // which the caller may have let go of
  int64_t issued_ns_;
  Status status_;
  std::atomic<bool> done_{false};
};

CallQueue::CallQueue(std::unique_ptr<GroupEnd> group)
    : group_(std::move(group)), fork_generation_(fork_generation()) {}

CallQueue::~CallQueue() { finish(); }

bool CallQueue::forked() const { return fork_generation_ != fork_generation(); }

Status CallQueue::run(const Call& call) {
  if (forked()) return after_fork();
  if (inside == this) return from_inside(call);
  uint32_t idle = 0;
  if (!state_.compare_exchange_strong(idle, kRunning, std::memory_order_acquire)) return start(call)->wait();
  Status status = run_guarded(call, 0);
  uint32_t running = kRunning;
  if (!state_.compare_exchange_strong(running, 0, std::memory_order_release)) {
    // Something was started meanwhile; hand over.
    const std::lock_guard lock(mutex_);
    state_.fetch_and(~kRunning, std::memory_order_release);
    changed_.notify_all();
  }
  return status;
}

// Whatever happens inside, the queue goes on and the peers learn of it.
Status CallQueue::run_guarded(const Call& call, int64_t issued_ns) {
  const Inside here(this);
  Status failed;
  try {
    return group_->run(call, issued_ns);
  } catch (const std::bad_alloc&) {
    failed = {ErrorCode::kOutOfMemory,
              fmt::format("{} of {} {}: no memory for its own book-keeping; raise the limit "
                          "of this process or use less",
                          name_of(call.collective), call.count, name_of(call.type))};
  } catch (const std::exception& error) {
    failed = {ErrorCode::kInternal, fmt::format("{}: {}", name_of(call.collective), error.what())};
  }
  group_->abort(failed);
  return failed;
}

std::shared_ptr<Work> CallQueue::start(const Call& call, std::shared_ptr<CallListener> listener) {
  auto item = std::make_shared<Item>(shared_from_this(), call, std::move(listener));
  if (forked()) {
    item->status_ = after_fork();
    if (item->listener_) item->listener_->after(item->status_);
    item->done_.store(true, std::memory_order_release);
    if (item->listener_) item->listener_->done();
    return item;
  }
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(item);
    state_.fetch_or(kPending, std::memory_order_relaxed);
    if (start_thread()) {
      changed_.notify_all();
      return item;
    }
  }
  (void)item->wait(std::nullopt);  // no thread may be made here: the call is made at once
  return item;
}

// With lock held. False where the limits of the process allow no thread.
bool CallQueue::start_thread() {
  if (thread_.joinable()) return true;
  return start_own_thread(thread_, [this] { serve(); });
}

void CallQueue::run_front(std::unique_lock<std::mutex>& lock) {
  uint32_t seen = state_.load(std::memory_order_relaxed);
  if ((seen & kRunning) != 0 ||
      !state_.compare_exchange_strong(seen, seen | kRunning, std::memory_order_acquire))
    return;
  const std::shared_ptr<Item> item = items_.front();
  items_.pop_front();
  lock.unlock();
  const std::shared_ptr<CallListener> listener = std::move(item->listener_);
  if (listener) listener->before();
  item->status_ = run_guarded(item->call_, item->issued_ns_);
  if (listener) listener->after(item->status_);
  lock.lock();
  state_.store(items_.empty() ? 0 : kPending, std::memory_order_release);
  item->done_.store(true, std::memory_order_release);
  changed_.notify_all();
  if (!listener) return;
  lock.unlock();
  listener->done();
  lock.lock();
}

void CallQueue::abort(const Status& reason) {
  if (!forked()) group_->abort(reason);
}

void CallQueue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return runnable() || (stop_ && items_.empty()); });
    if (items_.empty()) return;
    run_front(lock);
  }
}

void CallQueue::refuse() {
  if (forked() || inside == this) return;
  // No operation reduces this type, so the group refuses the call, in its place among the others.
  Call impossible;
  impossible.collective = Collective::kAllReduce;
  impossible.type = DataType::kFloat8E4M3;
  (void)run(impossible);
}

void CallQueue::finish() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
    const auto drained = [this] {
      return items_.empty() && (state_.load(std::memory_order_relaxed) & kRunning) == 0;
    };
    while (!changed_.wait_for(lock, kInterruptPeriod, drained)) {
      lock.unlock();
      if (Status status = group_->check_interrupt(); !status.ok()) group_->abort(status);
      lock.lock();
    }
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace collective_ops
