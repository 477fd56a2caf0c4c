#include "torch/message_work.h"

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "torch/errors.h"
#include "torch/flight_recorder.h"

namespace collective_ops::pytorch {
namespace {

// Completes the futures of messages, of which few are ever asked for. The core tells nobody when a message is
// done, so a thread waits for them.
class Futures {
 public:
  using Entry = std::pair<c10::intrusive_ptr<MessageWork>, c10::intrusive_ptr<c10::ivalue::Future>>;

  static Futures& instance() {
    static auto* futures = new Futures();  // never destroyed: its thread lives as long as the process
    return *futures;
  }

  void add(Entry entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
    if (!std::exchange(running_, true)) std::thread([this] { serve(); }).detach();
    changed_.notify_one();
  }

 private:
  // Ends after a while without work.
  void serve() {
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, std::chrono::seconds(5), [this] { return !entries_.empty(); })) {
      Entry entry = std::move(entries_.front());
      entries_.pop_front();
      lock.unlock();
      try {
        entry.first->wait();
        entry.second->markCompleted(c10::IValue(entry.first->result()));
      } catch (...) {
        entry.second->setErrorIfNeeded(std::current_exception());
      }
      entry = {};
      lock.lock();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool running_ = false;
};

}  // namespace

MessageWork::MessageWork(int rank, Task task, Transfer transfer, const char* title)
    : c10d::Work(rank, task.kind.type, title, title != nullptr ? std::optional(task.inputs) : std::nullopt),
      task_(std::move(task)),
      transfer_(transfer) {}

void MessageWork::started(std::shared_ptr<collective_ops::Work> work) {
  work_ = std::move(work);
  FlightRecorder::instance().started(task_.record);
}

bool MessageWork::isCompleted() {
  if (!work_ || !work_->done()) return false;
  end();
  return true;
}

bool MessageWork::isSuccess() const { return const_cast<MessageWork*>(this)->isCompleted() && !exception(); }

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  TORCH_CHECK(work_, task_.kind.title, ": the batch that this message belongs to has not been started yet");
  if (!isCompleted()) {
    const Interruptible here;
    std::optional<std::chrono::milliseconds> limit;
    if (timeout > kNoTimeout) limit = timeout;
    const Status status = work_->wait(limit);
    if (!status.ok() && (!work_->done() || status.code() == ErrorCode::kInterrupted)) raise(status);
    end();
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

// Once the message has come or gone: by whoever notices first.
void MessageWork::end() {
  const std::lock_guard lock(ending_);
  if (std::exchange(ended_, true)) return;
  const Status status = work_->wait();
  if (status.ok()) FlightRecorder::instance().ended(task_.record);
  std::exception_ptr error = status.ok() ? nullptr : to_exception(status);
  if (!error && transfer_.kind == Transfer::kReceive) {
    try {
      task_.output.deliver();
    } catch (...) {
      error = std::current_exception();
    }
  }
  task_.input = {};
  task_.output = {};
  finish(error);
}

int MessageWork::sourceRank() const {
  const auto received = work_ && work_->done() ? work_->received() : std::nullopt;
  TORCH_CHECK(received, task_.kind.title, ": the source is known once the message has come");
  return received->source;
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  Futures::instance().add({c10::intrusive_ptr<MessageWork>::unsafe_reclaim_from_nonowning(this), future});
  return future;
}

}  // namespace collective_ops::pytorch
